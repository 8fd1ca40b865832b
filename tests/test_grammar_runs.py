"""Runs with every kind of constraint: what is logged, what a resumed run does, and what the dual sees."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.callbacks.progress import progress_table
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.grpo.losses import LossOptions, grpo_loss
from lightning_cgrpo.multipliers import damped_ascent
from lightning_cgrpo.objective.evaluation import RunningSums
from tests import process_worker
from tests.memory import Memory, steady
from tests.quiet import quiet_trainer

UPDATES = 15


class Stop(Callback):
    """Writes a checkpoint after an update, and ends the run before the next."""

    def __init__(self, update: int | None, path: Path | None) -> None:
        self.update, self.path = update, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.update:
            trainer.save_checkpoint(self.path)
            raise ChildProcessError


def trained(updates: int = UPDATES, ckpt_path: str | None = None, stop: int | None = None, save: Path | None = None):
    module, memory, duals = process_worker.grammar_module(), Memory(), LagrangianCallback()
    trainer = quiet_trainer(duals, memory, Stop(stop, save), precision="64-true", logger=memory, max_steps=updates)
    trainer.fit(module, process_worker.WithSides(3, seed=0), ckpt_path=ckpt_path)
    updates_of = {update: steady(metrics) for update, metrics in memory.updates.items()}
    return module, updates_of, duals, [outputs["measured"] for outputs in memory.outputs]


@pytest.fixture(scope="module")
def whole():
    return trained()


def test_tags_and_thresholds_in_force(whole) -> None:
    _, updates, _, _ = whole
    first, last = updates[0], updates[14]
    for update in (first, last):
        assert {"rate/lava", "mean/brief", "rate/fine", "mean/drift", "mean/lively"} <= update.keys()
        assert not {"mean/lava", "rate/brief", "rate/drift"} & update.keys()
        assert not [tag for tag in update if tag.startswith("effective_weight/") and tag.endswith(("drift", "lively"))]
    assert first["threshold/lava"] == 0.5 and last["threshold/lava"] == 0.01
    assert first["threshold/fine"] == 0.1 and last["threshold/fine"] == pytest.approx(0.1 + 0.8 * 14 / 15)
    assert first["threshold/brief"] == 40 and last["threshold/brief"] == 10
    assert 0.5 < last["mean/drift"] / last["policy/kl"] < 2, "the latter is after the first epoch, too"
    assert 1.5 < first["mean/lively"] <= math.log(5) and first["mean/drift"] == 0
    assert first["mean/lively"] + 0.005 < last["mean/lively"], "its multiplier lifts it"
    for name in ("brief", "fine", "drift", "lively", "slow"):
        assert len({updates[u][f"multiplier/{name}"] for u in updates}) > 5


def test_an_evaluation_measures_the_policys_own_signals(whole) -> None:
    """By hand, from the log-probabilities of both policies for the answers that were sampled."""
    module = deepcopy(whole[0]).float()  # trained in float64
    prompts = next(iter(process_worker.WithSides(3, seed=0).val_dataloader()))
    sums = RunningSums()
    with torch.no_grad():
        rollouts = module.measure(prompts, 4, Stream.VALIDATION, 0, sums)["rollouts"]
        examples = module.policy.examples(rollouts)
        policy = module.policy(examples)
        outputs = (model.net(examples.inputs["observations"]) for model in (module.policy, module.reference))
    log_p, log_q = (part.log_softmax(-1) for part in outputs)
    answers = rollouts.mask.flatten(0, 1)
    exact = (log_p.exp() * (log_p - log_q)).sum(-1)
    for name, values in (("drift", exact), ("lively", policy.entropy)):
        expected = torch.stack([part.mean() for part in values.split(answers.sum(1).tolist())]).mean()
        evaluation = sums.evaluation(module.objective)
        assert evaluation.metrics[f"mean/{name}"] == pytest.approx(expected.item())
        assert expected > 0


def test_the_dual_sees_means_in_standard_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the first update's mean of steps, its spread within groups, and the default dual's first response."""
    monkeypatch.setattr(damped_ascent, "TOTAL", 1e9)  # Without a bound of the sum, the ratio to the reward is lambda.
    _, updates, _, measured = trained()
    steps = measured[0]["steps"].value.double()
    spread = math.sqrt((steps - steps.mean(1, keepdim=True)).square().sum() / (len(steps) * (steps.shape[1] - 1)))
    # The target lies a standard error of the answers so far inside the threshold.
    v = max(min((steps.mean().item() - 40) / spread + 1 / math.sqrt(steps.numel()), 10), -10)
    proportional = max(min(5 * v, 1), -1)
    log_multiplier = proportional + max(proportional, 0) + 5 / 60 * v
    expected = math.exp(min(max(log_multiplier, math.log(0.01)), math.log(10)))
    assert updates[1]["multiplier/brief"] / updates[1]["multiplier/reward"] == pytest.approx(expected, rel=1e-6)


def test_a_resumed_run_is_the_same_to_the_last_bit(whole, tmp_path) -> None:
    """Stopped in the middle of a line."""
    module, updates, duals, _ = whole
    with pytest.raises(ChildProcessError):
        trained(stop=7, save=tmp_path / "last.ckpt")
    resumed, later, others, _ = trained(ckpt_path=str(tmp_path / "last.ckpt"))
    assert sorted(later) == list(range(7, 15))
    for update, metrics in later.items():
        assert metrics == updates[update], update
    for one, other in zip(module.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    for part in ("controller", "spread"):
        ours, theirs = duals.state_dict()[part], others.state_dict()[part]
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_schedule_past_the_end_ends_the_run_before_it_begins() -> None:
    with pytest.raises(Exception, match="within the run's 5 updates, but got over: 7, try over: 3"):
        trained(5)


def test_the_table_shows_the_threshold_in_force_and_units(whole) -> None:
    module, updates, _, _ = whole
    module.latest_metrics = updates[3]
    names, thresholds = ([str(cell) for cell in column.cells] for column in progress_table(module).columns[:2])
    shown = dict(zip(names, thresholds, strict=True))
    assert (shown["fine"], shown["brief"], shown["lava"]) == (">= 0.26", "<= 31", "<= 0.29")


class TestPenalties:
    def test_coefficients_are_weights(self) -> None:
        lava, drift = Constraint(at_most=0.1), Constraint(signal="kl", mean_at_most=0.1)
        lively = Constraint(signal="entropy", mean_at_least=1.0)
        objective = Objective("goal", {"lava": lava, "drift": drift, "lively": lively})
        weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
        penalties = objective.penalties(weights)
        assert penalties["kl"].item() == 0.2 and penalties["entropy"].item() == -0.1
        assert objective.component_weights(weights).tolist() == [0.4, 0.3]
        assert objective.component_names == ["reward", "lava"]

    def test_the_loss_with_a_penalty_is_the_loss_with_the_weight(self) -> None:
        torch.manual_seed(0)
        p, old, reference, advantages = (torch.randn(5, dtype=torch.float64) for _ in range(4))
        entropy, w = torch.rand(5, dtype=torch.float64), torch.full((5,), 0.2, dtype=torch.float64)
        given = {"reference_log_probs": reference, "exact_kl": reference.exp(), "entropy": entropy}
        exact = LossOptions(kl_weight=0.3, entropy_weight=0.2, exact_kl=True)
        by_hand = grpo_loss(p, old, advantages, w, exact, **given).loss
        penalties = {"kl": w.new_tensor(0.2), "entropy": w.new_tensor(-0.2)}
        weighed = LossOptions(kl_weight=0.1, exact_kl=True)
        learned = grpo_loss(p, old, advantages, w, weighed, **given, penalties=penalties).loss
        assert learned.item() == pytest.approx(by_hand.item(), rel=1e-12)
