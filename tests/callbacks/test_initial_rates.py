"""Before training: rates, and what is within reach of a choice among the answers."""

import warnings
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import Constraint, Objective, Signal
from lightning_cgrpo.callbacks import FixedWeights, InitialRates, LagrangianCallback, initial_rates
from lightning_cgrpo.callbacks.initial_rates import does_it_bind, met_by_far
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.modules.rollout_module import _check_lengths
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module
from tests.quiet import quiet_trainer


class Marked(GridworldTask):
    """Of every prompt's four answers, the first is `first`; a tenth of the prompts has none that is `rare`."""

    signals: ClassVar = {**GridworldTask.signals, "first": "indicator", "rare": "indicator", "never": "indicator"}
    signals |= {"absent": "indicator"}

    def score(self, prompts, rollouts):
        first = torch.zeros(rollouts.mask.shape[:2])
        first[:, 0] = 1
        rare = (prompts.index % 10 > 0)[:, None] * first
        more = {"first": Signal(first), "rare": Signal(rare), "never": Signal(torch.zeros_like(first))}
        more["absent"] = Signal(first, applicable=torch.zeros_like(first, dtype=torch.bool))
        return {**super().score(prompts, rollouts), **more}


class Counting(Marked):
    """Logs how many batches it has scored."""

    batches = 0.0

    def score(self, prompts, rollouts):
        self.batches += 1
        return super().score(prompts, rollouts)

    def logged(self):
        batches, self.batches = self.batches, 0.0
        return {"batches": [batches]}


def before_training(tmp_path, objective, task=None):
    module, logged = grid_module(max_steps=5, task=task or Marked(), objective=objective), {}

    logger = CSVLogger(tmp_path)
    logger.log_metrics = lambda metrics, step=None: logged.update(metrics)
    weights = FixedWeights(dict.fromkeys(objective.constrained, 0.1))
    trainer = quiet_trainer(InitialRates(batches=4), weights, max_steps=1, logger=logger)
    trainer.fit(module, GridworldDataModule(prompts_per_update=50, train_prompts=200))
    return logged


def test_the_best_answer_of_each_prompt_and_the_thresholds_out_of_reach(tmp_path, capsys):
    constraints = {"first": Constraint(at_least=0.9), "rare": Constraint(at_least=0.99)}
    objective = Objective("goal", constraints | {"never": Constraint(at_least=0.5, role="monitor")})
    with pytest.warns(UserWarning, match="out of reach") as caught:
        logged = before_training(tmp_path, objective)
    assert logged["initial/rate/first"] == 0.25 and logged["initial/best/first"] == 1
    # 200 prompts are the whole epoch: 20 of them have no rare answer.
    assert logged["initial/best/rare"] == pytest.approx(0.9)
    assert logged["initial/some_answer_meets_all"] == pytest.approx(0.9)
    messages = [str(w.message) for w in caught if "out of reach" in str(w.message)]
    assert len(messages) == 1, "of what is enforced, only the rare signal is out of reach"
    assert messages[0].startswith(
        "The threshold rare >= 0.99 is out of reach at the start: the best of 4 answers to each prompt has a rate of "
        "0.900 (0.850-0.938). Training"
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "best of 4" in text and "Prompts with an answer that meets all thresholds: 0.900 (0.850-0.938)." in text


@pytest.mark.parametrize("multipliers", [LagrangianCallback(), FixedWeights({"first": 0.1})])
def test_the_targets_of_a_declared_look_are_those_of_learned_multipliers(multipliers, capsys):
    objective = Objective("goal", {"first": Constraint(at_least=0.1)}, look=Look(1_000))
    module = grid_module(max_steps=5, task=Marked(), objective=objective)
    trainer = quiet_trainer(InitialRates(), multipliers, max_steps=1)
    trainer.fit(module, GridworldDataModule(prompts_per_update=50, train_prompts=200))
    text = " ".join(capsys.readouterr().out.split())
    aims = not isinstance(multipliers, FixedWeights)
    assert ("Training aims at the targets, for a look with 1,000 prompts" in text) == aims
    assert ("0.1 target" in text) == aims
    assert ("The weights are fixed, so training has no targets, for a look with 1,000 prompts" in text) != aims


def test_a_threshold_that_the_sample_leaves_open_is_not_called_out(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*out of reach.*")
        before_training(tmp_path, Objective("goal", {"rare": Constraint(at_least=0.92)}))


def test_no_answer_is_known_to_meet_a_threshold_that_was_never_measured(tmp_path, capsys):
    """A function that returns NaN for every answer must not look as if all its answers met the threshold."""
    constraints = {"first": Constraint(at_least=0.9), "absent": Constraint(at_most=0.1)}
    logged = before_training(tmp_path, Objective("goal", constraints))
    assert logged["initial/best/first"] == 1 and "initial/some_answer_meets_all" not in logged
    assert "meets all thresholds" not in capsys.readouterr().out


def test_metrics_of_functions_leave_the_answers_before_training_out(tmp_path):
    logged = before_training(tmp_path, Objective("goal", {"first": Constraint(at_least=0.5)}), Counting())
    assert logged["functions/batches"] == 1


@pytest.mark.parametrize(
    ("name", "constraint", "start"),
    [
        ("first", Constraint(at_most=0.9), "first <= 0.9 is met before training by far (0.250, best of 4 0.000)"),
        ("first", Constraint(at_least=0.009), "first >= 0.009 is met before training by far (0.250, best of 4 1.000)"),
        ("first", Constraint(at_most=0.6), "first <= 0.6 is met"),
        ("never", Constraint(at_most=0.3), "never <= 0.3 is met before training by far (0.000, best of 4 0.000)"),
        ("rare", Constraint(at_least=0.05), "rare >= 0.05 is met"),
        # Missed; met, and near; monitored; not measured.
        ("first", Constraint(at_least=0.9), None),
        ("first", Constraint(at_most=0.3), None),
        ("never", Constraint(at_most=0.3, role="monitor"), None),
        ("absent", Constraint(at_most=0.9), None),
    ],
)
def test_a_threshold_that_is_met_by_far_is_told_and_no_other(tmp_path, capsys, name, constraint, start):
    before_training(tmp_path, Objective("goal", {name: constraint}))
    told = [line for line in capsys.readouterr().out.splitlines() if "does it bind?" in line]
    assert len(told) == (start is not None)
    other = "at_most" if constraint.bound.lower else "at_least"
    assert all(line.startswith(start) and f"Did you mean {other}," in line for line in told)


@pytest.mark.parametrize(
    ("constraint", "far"),
    [
        *((Constraint(mean_at_most=bound), bound >= 60) for bound in (500, 60, 35, 20)),  # far; met, and near; missed
        *((Constraint(mean_at_least=bound), bound == 5) for bound in (5, 20)),
    ],
)
def test_means(constraint, far):
    sign = -1 if constraint.bound.lower else 1
    mean = ClusteredMean(sign * 25.0, 1.0, 50, 50)
    assert met_by_far("long", constraint, mean) == far
    line = does_it_bind("long", constraint, mean, mean, 4)
    assert line.startswith(f"long {constraint.bound} is met before training by far (25, best of 4 25)")


def test_a_mean_that_no_answer_exceeds_is_refused():
    objective = Objective({"tokens": -1.0}, {"long": Constraint(signal="tokens", mean_at_most=80)})
    task = SimpleNamespace(max_completion_tokens=None)
    _check_lengths(objective, 81, task)
    with pytest.raises(UserError, match=r"'long' to be missed by some policies, .* at most 80 tokens"):
        _check_lengths(objective, 80, task)


def test_the_policys_own_signals_begin_at_their_best():
    mean = ClusteredMean(0.0, 0.001, 50, 50)
    assert met_by_far("drift", Constraint(mean_at_most=0.1), mean)
    assert not met_by_far("kl", Constraint(mean_at_most=0.1), mean)
    assert not met_by_far("drift", Constraint(mean_at_most=0.1, signal="kl"), mean)


def test_a_target_out_of_reach_is_told_once(monkeypatch):
    """The threshold 0.1 is within reach of a rate of 0.05, the target 0.01 of a look is not."""
    told = []
    monkeypatch.setattr(initial_rates, "rank_zero_warn", told.append)
    objective = Objective("goal", {"long": Constraint(at_most=0.1)})
    best = {"long": ClusteredRate(0.05, 0.002, 10_000, 10_000, 500, 9_500)}
    for targets in ({}, {"long": 0.01}, {"long": 0.06}):
        list(initial_rates.threshold_notes(objective, Evaluation(), best, 4, targets))
    assert len(told) == 1 and told[0].startswith("The target of long for the declared look, <= 0.01, is out of reach")
