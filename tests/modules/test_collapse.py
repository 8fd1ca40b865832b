"""A policy that has collapsed is reported, with the update where it began, and resumes as it was."""

import math
import warnings

import pytest
import torch
from lightning.pytorch import Callback

from lightning_cgrpo import (
    ConstrainedGRPO,
    Constraint,
    EnvironmentSampler,
    GaussianMLP,
    Gymnasium,
    GymnasiumTask,
    Objective,
    Optimization,
)
from lightning_cgrpo.datamodules import SeedDataModule
from lightning_cgrpo.modules.collapse import UPDATES, CollapseDetector, all_succeed, constant_rewards
from lightning_cgrpo.objective.objective import Components
from lightning_cgrpo.rollout import Signal
from tests.quiet import quiet_trainer
from tests.tasks.gymnasium import small_worlds

SOME, NONE = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 2)


def feed(detector, updates, entropy=1.0, advantages=SOME, succeeded=False, stepped=True, constant=False):
    for update in updates:
        mean, values = torch.tensor([entropy, 1.0]), torch.zeros(2, 0)
        detector.add(update, mean, advantages, torch.tensor([constant]), torch.tensor(succeeded), stepped, values)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"entropy": 0.0099}, "entropy, or the width of its actions, is below 1%"),
        ({"entropy": math.nan}, "entropy, or the width of its actions, is below 1%"),
        ({"advantages": NONE}, "no group has an advantage"),
        ({"stepped": False}, "no gradient is finite"),
    ],
)
def test_twenty_updates_in_a_row_are_a_collapse(fault, reason):
    detector = CollapseDetector(["goal"])
    feed(detector, range(7))
    with pytest.warns(UserWarning, match=rf"collapsed: since update 7 .*{reason}"):
        feed(detector, range(7, 2 * UPDATES), **fault)
    assert detector.collapsed_since == 7


@pytest.mark.parametrize(
    "harmless", [{"entropy": 0.0101}, {"advantages": NONE, "succeeded": True}, {"advantages": SOME}]
)
def test_a_policy_that_learns_or_has_nothing_to_learn_is_none(harmless):
    detector = CollapseDetector(["goal"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(detector, range(1))
        feed(detector, range(1, 5 * UPDATES), **harmless)
    assert detector.collapsed_since is None


@pytest.mark.parametrize(("entropy", "collapsed"), [(-3.5, None), (-8.2, None), (-8.3, 1), (math.nan, 1)])
def test_continuous_actions_may_have_a_negative_entropy(entropy, collapsed):
    """Of two numbers; 1 % of the first width is 2 ln 0.01 = -9.2 nats below the first entropy, which is 1."""
    detector = CollapseDetector(["goal"], action_size=2)
    feed(detector, range(1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        feed(detector, range(1, 2 * UPDATES), entropy=entropy)
    assert detector.collapsed_since == collapsed and bool(told) == (collapsed is not None)


def test_nineteen_updates_are_none_and_recovery_ends_it():
    detector = CollapseDetector(["goal"])
    feed(detector, range(1))
    feed(detector, range(1, UPDATES), entropy=0.0)
    feed(detector, range(UPDATES, 2 * UPDATES))
    assert detector.collapsed_since is None
    with pytest.warns(UserWarning, match="since update 40"):
        feed(detector, range(2 * UPDATES, 3 * UPDATES), entropy=0.0)
    feed(detector, range(3 * UPDATES, 4 * UPDATES))
    assert detector.collapsed_since is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # The first collapse was reported.
        feed(detector, range(4 * UPDATES, 5 * UPDATES), entropy=0.0)
    assert detector.collapsed_since == 4 * UPDATES


@pytest.mark.parametrize("killed", [3, 19, 20, 33, 59])
def test_a_resumed_run_finds_the_same(killed):
    """The state is plain numbers, since checkpoints hold nothing else."""
    first, second = CollapseDetector(["goal"]), CollapseDetector(["goal"])
    values = [1.0] * 13 + [0.0] * 60
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for update, entropy in enumerate(values):
            if update == killed:
                second.load_state_dict(first.state_dict(), torch.device("cpu"))
            feed(first, [update], entropy)
            if update >= killed:
                feed(second, [update], entropy)
    assert first.state_dict() == second.state_dict()
    assert first.collapsed_since == 13


def test_success_is_no_violation_and_every_reward():
    objective = Objective("goal", {"lava": Constraint(at_most=0.1)})
    ones, none = torch.ones(2, 3), torch.zeros(1)

    def succeeded(goal, violations=none, applicable=None):
        signals = {"goal": Signal(goal, applicable=applicable)}
        return bool(all_succeed(objective, signals, violations, torch.ones_like(violations)))

    mostly = ones.clone()
    mostly[1, 2] = 0
    assert succeeded(ones) and not succeeded(mostly) and not succeeded(ones, violations=torch.ones(1))
    assert succeeded(mostly, applicable=mostly.bool())


def test_a_reward_that_never_varies_is_told():
    detector = CollapseDetector(["goal"])
    feed(detector, range(3))
    with pytest.warns(UserWarning, match="The reward 'goal' teaches nothing: since update 3 it is the same"):
        feed(detector, range(3, 40), constant=True)
    assert detector.collapsed_since is None, "it is no collapse of the policy"


def test_constant_rewards():
    values = torch.tensor([[[0.5, 0.5], [0.5, 9.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    applicable = torch.ones(3, 2, 2, dtype=torch.bool)
    assert constant_rewards(Components(values, applicable), 2).tolist() == [False, False]
    applicable[0, 1, 1] = False
    assert constant_rewards(Components(values, applicable), 3).tolist() == [True, False, False]


class Narrower(Callback):
    """Divides the width of the actions by 20 after the first update."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            last = pl_module.policy.net[-1]
            last.weight.zero_()
            last.bias.copy_(torch.tensor([0.75, -3.0 * (trainer.global_step > 0)]))


@pytest.mark.parametrize("aggregation", ["sequence_sum", "constant"])
def test_optimizer_steps_and_aggregations_do_not_collapse_a_policy(aggregation):
    """Entropy is a mean over actions: twelve optimizer steps, or long answers, don't multiply it."""
    torch.manual_seed(0)
    module = ConstrainedGRPO(
        GaussianMLP(2, 1, low=-0.5, high=2.0, hidden=(8,)),
        EnvironmentSampler(Gymnasium(f"{small_worlds.__name__}:Walk-v0", {"continuous": True})),
        GymnasiumTask(),
        Objective("return"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        optimization=Optimization(epochs=4, minibatch_size=4, aggregation=aggregation, max_length=2),
        group_size=4,
    )
    trainer = quiet_trainer(Narrower(), max_steps=UPDATES + 20)
    trainer.fit(module, SeedDataModule(prompts_per_update=2))
    assert module.collapse.collapsed_since is None
