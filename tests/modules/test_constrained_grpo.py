"""What an update does besides the algorithm: faults, schedules, clipping, counting, precision."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import lightning_cgrpo.modules.constrained_grpo
from lightning_cgrpo import (
    CategoricalMLP,
    CausalLMPolicy,
    Constraint,
    FunctionTask,
    GenerationSampler,
    MLPCritic,
    Objective,
    Optimization,
    ScalarizedGAE,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from lightning_cgrpo.modules.policy_steps import check_sampling
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer

GROUPS, GROUP_SIZE = 4, 4
OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.05)})


def make(task=None, optimizer=None, scheduler=None, objective=OBJECTIVE, policy=None, estimator=None, **optimization):
    parts = {"task": task, "policy": policy, "optimizer": optimizer, "estimator": estimator}
    return grid_module(
        max_steps=30,
        objective=objective,
        lr_scheduler=scheduler,
        optimization=Optimization(**{"aggregation": "token_mean", "entropy_weight": 0.001, **optimization}),
        **{name: part for name, part in parts.items() if part is not None},
    )


def train(module, updates=3, multipliers=True, **options):
    """Returns the metrics by update, and the record."""
    record = Memory()
    callbacks = [LagrangianCallback(SoftmaxAdam())] * multipliers + [record]
    trainer = quiet_trainer(*callbacks, logger=record, max_steps=updates, **options)
    trainer.fit(module, GridworldDataModule(GROUPS, train_prompts=100, size=5, lava=6))
    assert trainer.global_step == updates
    return record.updates, record


FAULTY = torch.zeros(GROUPS, GROUP_SIZE, dtype=torch.bool)
FAULTY[0, 1] = FAULTY[2, 3] = FAULTY[3] = True


class Broken(GridworldTask):
    """In update 1 some values of two signals are NaN or infinite; or, for comparison, declared not to apply."""

    def __init__(self, declared):
        super().__init__()
        self.declared, self.calls = declared, 0

    def score(self, prompts, rollouts):
        signals, self.calls = super().score(prompts, rollouts), self.calls + 1
        if self.calls == 2:
            for name, fault in (("goal", math.nan), ("lava", math.inf)):
                if self.declared:
                    signals[name] = replace(signals[name], applicable=~FAULTY)
                else:
                    signals[name] = replace(signals[name], value=signals[name].value.masked_fill(FAULTY, fault))
        return signals


class Logging(GridworldTask):
    """Logs the numbers of its calls."""

    calls = 0

    def logged(self):
        self.calls += 1
        return {"calls": [self.calls, self.calls + 1.0]}


def test_a_tasks_metrics_are_logged_by_update():
    metrics, _ = train(make(Logging()))
    assert [update["functions/calls"] for update in metrics.values()] == [1.5, 2.5, 3.5]


def test_values_that_are_not_finite_are_faults_and_left_out():
    """They are counted and said; the rest is, bit for bit, as if the entries did not apply, duals included."""
    with pytest.warns(UserWarning, match=r"not finite and are left out: \{'goal': 6, 'lava': 6\}"):
        metrics, record = train(make(Broken(declared=False)))
    expected, declared = train(make(Broken(declared=True)))
    assert metrics[1]["faults/goal"] == metrics[1]["faults/lava"] == 6
    assert not any(tag.startswith("faults/") for update in (0, 2) for tag in metrics[update])
    assert not any(tag.startswith("faults/") for update in expected for tag in expected[update])
    for update in range(3):
        for tag in expected[update]:
            if tag.startswith("inapplicable/"):
                assert tag not in metrics[update], "a fault is no statement that a signal does not apply"
            elif not tag.startswith(("time/", "throughput/")):
                assert metrics[update][tag] == expected[update][tag], tag
    assert torch.equal(torch.stack(record.parameters), torch.stack(declared.parameters))
    assert record.parameters[-1].isfinite().all() and not torch.equal(*record.parameters[1:])
    # The counts are those of the other ten answers.
    outputs = record.outputs[1]
    lava, steps = outputs["rollouts"].info["lava"].sum(-1), outputs["rollouts"].lengths
    assert outputs["violations"][0] == lava[~FAULTY].sum() and outputs["opportunities"][0] == steps[~FAULTY].sum()
    assert outputs["opportunities"][1] == steps.sum(), "the battery's signal is whole"


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_skips_its_step_alone(monkeypatch, factor):
    """The policy stays, Adam's state too; the update counts, its other steps and the next updates are taken."""
    factors = iter((1.0, factor, 1.0))  # one step per update; that of update 1 is broken
    loss = lightning_cgrpo.modules.policy_steps.grpo_loss

    def broken(*arguments, **options):
        terms = loss(*arguments, **options)
        return replace(terms, loss=terms.loss * next(factors))

    monkeypatch.setattr(lightning_cgrpo.modules.policy_steps, "grpo_loss", broken)
    module = make()
    with pytest.warns(UserWarning, match="gradient of update 1 is not finite; its optimizer step is skipped"):
        metrics, record = train(module)
    before, during, after = record.parameters
    assert torch.equal(before, during) and not torch.equal(during, after) and after.isfinite().all()
    assert steps_taken(module) == 2
    assert metrics[1]["faults/skipped_steps"] == 1 and "policy/grad_norm" not in metrics[1]
    assert "faults/skipped_steps" not in metrics[0] and "faults/skipped_steps" not in metrics[2]
    assert record.steps == [1, 2, 3]
    assert metrics[1]["multiplier/lava"] != metrics[2]["multiplier/lava"], "duals go on"


def steps_taken(module):
    """Of Adam, in the module's run."""
    (steps,) = {int(state["step"]) for state in module.trainer.optimizers[0].state.values()}
    return steps


class Dropping(CategoricalMLP):
    """A policy with dropout, which remembers its mode in each pass."""

    def __init__(self):
        super().__init__(30, 5, hidden=(16,))
        self.dropout, self.modes = torch.nn.Dropout(0.5), []

    def actor(self):
        self.modes.append(self.training)
        act = super().actor()
        return lambda values: self.dropout(act(values))


def test_a_policy_with_dropout_is_the_same_policy_in_sampling_and_training():
    """At learning rate 0, no ratio is clipped, though minibatches read the log-probabilities again."""
    policy = Dropping()
    module = make(optimizer=lambda p: torch.optim.SGD(p, lr=0.0), policy=policy, epochs=2, minibatch_size=7)
    metrics, _ = train(module, updates=2)
    assert [update["policy/clip_fraction"] for update in metrics.values()] == [0, 0]
    assert policy.modes[0] is False and policy.modes[1] is True, "sampling, then training"


class Noisy(CategoricalMLP):
    """Dropout that no module announces."""

    def forward(self, examples):
        noisy = torch.nn.functional.dropout(examples.inputs["observations"], 0.1, training=self.training)
        return super().forward(replace(examples, inputs={"observations": noisy}))


def test_a_policy_that_differs_in_training_is_refused_in_the_first_update():
    with pytest.raises(UserError, match="because dropout"):
        train(make(policy=Noisy(30, 5, hidden=(16,))), updates=1)


def test_a_process_without_prompts_compares_nothing():
    check_sampling(*torch.zeros(2, 0), torch.zeros(0, dtype=torch.bool), "policy")


def test_an_update_is_one_step_whatever_its_epochs_and_minibatches():
    """Two epochs of several minibatches each: that many optimizer steps, but `global_step` counts updates."""
    module = make(epochs=2, minibatch_size=100)
    _, record = train(module)
    assert record.steps == [1, 2, 3]
    steps = [int(outputs["rollouts"].mask.sum()) for outputs in record.outputs]
    assert min(steps) > 100, "there must be several minibatches"
    assert steps_taken(module) == sum(2 * math.ceil(count / 100) for count in steps)


def test_the_schedule_moves_once_per_update():
    """Whatever the number of optimizer steps; the rate in the log is the one that the update used."""

    def halving(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=1.0)

    metrics, record = train(make(scheduler=halving, optimizer=sgd), updates=3)
    assert [metrics[update]["policy/learning_rate"] for update in range(3)] == [1, 0.5, 0.25]
    last_step = (record.parameters[2] - record.parameters[1]).norm().item()
    assert last_step == pytest.approx(0.25 * metrics[2]["policy/grad_norm"], rel=1e-4)
    metrics, _ = train(make(scheduler=halving, epochs=2, minibatch_size=100), updates=3)
    assert [metrics[update]["policy/learning_rate"] for update in range(3)] == [1e-3, 5e-4, 2.5e-4]


def test_more_updates_than_the_schedule_has_are_refused_before_training():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2, cycle_momentum=False)

    with pytest.raises(UserError, match="total_steps"):
        train(make(scheduler=schedule), updates=3)
    assert len(train(make(scheduler=schedule), updates=2)[0]) == 2


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_a_precision_that_would_round_multipliers_is_refused(precision):
    with pytest.raises(UserError, match=precision):
        train(make(), updates=1, precision=precision)


def test_multipliers_that_are_taken_out_leave_nothing_behind(tmp_path):
    """A run that goes on without the callback is plain GRPO, whatever the multipliers had been."""
    module = make()
    train(module, updates=2)
    assert not torch.equal(module.weights, torch.tensor([1.0, 0, 0], dtype=torch.float64))
    again = make()
    again.load_state_dict(module.state_dict())
    assert again.weights.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("longest", "constraint", "told"),
    [
        (8, Constraint(at_most=0.1, signal="tokens", violated_above=7), None),
        (8, Constraint(at_most=0.1, signal="brief", violated_above=9), None),
        (8, Constraint(at_most=0.1, signal="tokens", violated_above=8), "violated_above: 8 and answers of at most 8"),
        (9, Constraint(mean_at_most=5, signal="tokens"), "max_completion_tokens to be at least"),
    ],
)
def test_limits_that_no_answer_reaches_are_refused(longest, constraint, told):
    parts = {
        "policy": CausalLMPolicy("packaged:word-problems"),
        "sampler": GenerationSampler(longest),
        "task": FunctionTask({"brief": len}, max_completion_tokens=8),
        "objective": Objective("brief", {"long": constraint}),
    }
    with nullcontext() if told is None else pytest.raises(UserError, match=told):
        grid_module(**parts)


def test_a_checkpoint_of_another_policy_is_refused():
    module = make()
    with pytest.raises(UserError, match=r"'policy.more' is \[2\] there and nothing here"):
        module.on_load_checkpoint({"state_dict": {**module.state_dict(), "policy.more": torch.ones(2)}})
    weights = {"state_dict": module.state_dict()}
    for command in ("test", "fit"):
        state = SimpleNamespace(fn=command)
        module._trainer = SimpleNamespace(ckpt_path="last.ckpt", state=state, precision="32-true")
        with nullcontext() if command == "test" else pytest.raises(UserError, match="callbacks and loops"):
            module.on_load_checkpoint(dict(weights))


@pytest.mark.parametrize(
    ("order", "squares"),
    [
        ("abc", [1.0, 2.0, 3.0, 4.0]),
        ("bac", [1.0, 3.0, 2.0, 4.0]),
        ("bca", [1.0, 3.0, 4.0, 2.0]),  # an exchange of two is its own inverse; a cycle is not
        ("ab", None),  # another reward's and constraint's deviations say nothing
    ],
)
def test_running_deviations_stay_with_their_constraints_after_a_resume(order, squares):
    bounds = {n: Constraint(at_most=0.1, signal=of) for n, of in {"a": "lava", "b": "battery", "c": "goal"}.items()}
    saved, resumed = (make(objective=Objective("goal", {n: bounds[n] for n in names})) for names in ("abc", order))
    state = {"squares": torch.tensor([1.0, 2.0, 3.0, 4.0]), "freedom": torch.ones(4)}
    found = resumed._running_state_of({"estimator": state, "components": list(saved.objective.component_names)})
    assert (found["squares"].tolist() if found else None) == squares


def test_no_weight_moves_while_a_critic_warms_up():
    """The policy stays, so its rates would only repeat one violation."""
    estimator = ScalarizedGAE(
        MLPCritic(30, [16]), lambda weights: torch.optim.Adam(weights, lr=1e-3), learning=ValueLearning(warmup=2)
    )
    module = make(estimator=estimator)
    before = copy.deepcopy(module.policy.state_dict())
    _, record = train(module, updates=2)
    after = module.policy.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert all(outputs["opportunities"].sum() == 0 for outputs in record.outputs)
    assert torch.equal(record.weights[0], record.weights[1])
