"""The recipe for other people's loops: it learns, and its advantages and weights are the paper's."""

import pytest
import torch

from examples import planner_loop
from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective, ScalarizedAdvantages
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.multipliers import SoftmaxAdam

OBJECTIVE = Objective("speed", {"collision": Constraint(at_most=0.05)})


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"speed": torch.ones(2, 4)}, r"constraint 'collision' to name a signal of the task, \['speed'\]"),
        ({"speed": torch.ones(2, 4), "collision": torch.ones(1, 4)}, r"one shape .* 'collision': \(1, 4\)"),
        ({"speed": torch.ones(4), "collision": torch.ones(4)}, r"one shape \[prompts, answers to each\]"),
        ({"speed": torch.ones(2, 4).numpy(), "collision": torch.ones(2, 4)}, "'speed' to be a tensor, .* an? ndarray"),
    ],
)
def test_signals_that_are_no_tensors_of_the_answers_are_refused(measured, message):
    advantages_of = ConstrainedAdvantages(OBJECTIVE)
    with pytest.raises(UserError, match=message):
        advantages_of(measured)
    assert advantages_of.updates == 0, "the dual takes no step"


def test_advantages_are_constants_of_a_simulator_with_gradients():
    torch.manual_seed(0)
    speed, collision = torch.rand(2, 4, requires_grad=True), torch.zeros(2, 4)
    advantages = ConstrainedAdvantages(OBJECTIVE)({"speed": speed, "collision": collision})
    assert not advantages.requires_grad
    assert torch.equal(advantages, ConstrainedAdvantages(OBJECTIVE)({"speed": speed.detach(), "collision": collision}))


def test_a_signal_that_is_not_finite_does_not_apply():
    """As in a tensor; a running scale would never forget it."""
    speed = torch.rand(4, 8, generator=torch.Generator().manual_seed(0))
    collision = (speed > 0.6).float()
    speed[1, 2] = torch.nan
    found = []
    for given in (speed, Signal(speed)):
        advantages_of = ConstrainedAdvantages(OBJECTIVE)
        found.append([advantages_of({"speed": given, "collision": collision}) for _ in range(3)])
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all() and torch.equal(one, other)


def test_the_toy_planner_drives_fast_within_the_bound():
    torch.manual_seed(0)
    speed, collisions, weights = planner_loop.train(400)
    assert collisions <= 0.05
    assert speed > 0.29, "the fastest drive without collisions has 0.44, standing has 0"
    assert 0.2 < float(weights[1]) < 0.8


def test_advantages_are_those_of_the_weights_before_the_step():
    """A = w_R Z(R) - w_C Z(C), and then the dual's step by the rate of these candidates."""
    advantages_of = ConstrainedAdvantages(OBJECTIVE, SoftmaxAdam(lr=0.02))
    advantages_of.estimator = ScalarizedAdvantages("group")
    torch.manual_seed(0)
    speed, collision = torch.rand(4, 8), (torch.rand(4, 8) < 0.4).float()
    weights = advantages_of.controller.weights.float()
    advantages = advantages_of({"speed": speed, "collision": collision})

    def standardized(values):
        return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True, correction=0)

    expected = weights[0] * standardized(speed) - weights[1] * standardized(collision)
    torch.testing.assert_close(advantages, expected)
    alone = SoftmaxAdam(lr=0.02)
    alone.setup(1)
    alone.step(collision.double().mean()[None] - 0.05, torch.tensor([True]))
    assert torch.equal(advantages_of.controller.weights, alone.weights)
    assert advantages_of.controller.weights[1] > weights[1]
