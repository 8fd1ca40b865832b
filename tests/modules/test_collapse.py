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
from lightning_cgrpo.modules.collapse import UPDATES, CollapseDetector
from tests.quiet import quiet_trainer
from tests.tasks.gymnasium import small_worlds

OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.1)})
LEARNING = {
    "entropy": 10.0, "entropy weight": 10.0, "informed": 1.0, "informative/reward": 1.0,
    "sum/goal": 3.0, "count/goal": 8.0, "violations/lava": 0.0, "opportunities/lava": 8.0, "answers": 8.0,
}  # fmt: skip
UNINFORMED = {"informed": 0.0, "informative/reward": 0.0}
SUCCESS = {**UNINFORMED, "sum/goal": 8.0}


def feed(detector, updates, stepped=True, **changes):
    for update in updates:
        detector.check(update, {**LEARNING, **changes}, stepped)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"entropy": 0.099}, "entropy, or the width of its actions, is below 1%"),
        ({"entropy": math.nan}, "entropy, or the width of its actions, is below 1%"),
        (UNINFORMED, "no group has an advantage"),
        ({**SUCCESS, "violations/lava": 1.0}, "no group has an advantage"),
        ({"stepped": False}, "no gradient is finite"),
    ],
)
@pytest.mark.parametrize("every", [1, 3])
def test_twenty_updates_in_a_row_are_a_collapse(fault, reason, every):
    detector = CollapseDetector(OBJECTIVE)
    feed(detector, range(0, 6, every))
    with pytest.warns(UserWarning, match=rf"collapsed: since update 6 .*{reason}"):
        feed(detector, range(6, 2 * UPDATES, every), **fault)
    assert detector.collapsed_since == 6


@pytest.mark.parametrize("harmless", [{"entropy": 0.101}, SUCCESS, {"entropy weight": 0.0}])
def test_a_policy_that_learns_or_has_nothing_to_learn_is_none(harmless):
    detector = CollapseDetector(OBJECTIVE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(detector, range(1))
        feed(detector, range(1, 5 * UPDATES), **harmless)
    assert detector.collapsed_since is None


@pytest.mark.parametrize(("entropy", "collapsed"), [(-35.0, None), (-82.0, None), (-83.0, 1), (math.nan, 1)])
def test_continuous_actions_may_have_a_negative_entropy(entropy, collapsed):
    """Of two numbers; 1 % of the first width is 2 ln 0.01 = -9.2 nats below the first entropy, which is 1."""
    detector = CollapseDetector(OBJECTIVE, action_size=2)
    feed(detector, range(1))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        feed(detector, range(1, 2 * UPDATES), entropy=entropy)
    assert detector.collapsed_since == collapsed and bool(told) == (collapsed is not None)


def test_nineteen_updates_are_none_and_recovery_ends_it():
    detector = CollapseDetector(OBJECTIVE)
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


def test_a_resumed_run_finds_the_same():
    first, second = CollapseDetector(OBJECTIVE), CollapseDetector(OBJECTIVE)
    feed(first, range(3))
    feed(first, range(3, 15), entropy=0.0)
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="since update 3"):
        feed(second, range(15, 30), entropy=0.0)
    assert second.collapsed_since == 3


def test_a_reward_that_never_varies_is_told():
    detector = CollapseDetector(OBJECTIVE)
    feed(detector, range(3))
    with pytest.warns(UserWarning, match="The reward 'goal' teaches nothing: since update 3 no two answers"):
        feed(detector, range(3, 40), **{"informative/reward": 0.0})
    assert detector.collapsed_since is None, "it is no collapse of the policy"


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
