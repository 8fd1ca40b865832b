"""Floors and caps: the projection's optimality, names and feasibility, and what a run sees of them."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from examples.controllers.bounded_weights import BoundedWeights, adopt, bounded
from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.multipliers import Controller, DampedAscent, ProjectedAscent, SoftmaxAdam, StallDetector
from tests.dual_run import COUNTS, DualRun, Frozen, numbers, saved


def started(controller: Controller, **options) -> DualRun:
    return DualRun(BoundedWeights(controller, **options)).start()


@st.composite
def problems(draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, zeros among them, with feasible floors and caps."""
    size = draw(st.integers(1, 6))
    share = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))

    def vector() -> torch.Tensor:
        return numbers(*draw(st.lists(share, min_size=size, max_size=size)))

    weights, inside = vector(), vector()
    assume(weights.sum() > 0 and inside.sum() > 0)
    weights, inside = weights / weights.sum(), inside / inside.sum()
    return weights, inside * vector(), inside + (1 - inside) * vector()


def by_bisection(weights: torch.Tensor, floor: torch.Tensor, cap: torch.Tensor) -> torch.Tensor:
    """clip(c (weights + tiny), floor, cap) for the c that makes the sum 1."""
    weights = weights + 1e-200
    low, high = -500.0, 500.0
    for _ in range(200):
        middle = (low + high) / 2
        total = torch.minimum(torch.maximum(math.exp(middle) * weights, floor), cap).sum()
        low, high = (middle, high) if total < 1 else (low, middle)
    return torch.minimum(torch.maximum(math.exp(high) * weights, floor), cap)


class TestBounded:
    @settings(max_examples=100, deadline=None)
    @given(problems())
    def test_is_the_projection(self, problem) -> None:
        weights, floor, cap = problem
        result = bounded(weights, floor, cap)
        assert (result >= floor).all() and (result <= cap).all()
        assert result.sum() == pytest.approx(1, abs=1e-12)
        assert torch.allclose(result, by_bisection(weights, floor, cap), atol=1e-9)
        assert bounded(result, floor, cap) is result


def test_one_number_bounds_all() -> None:
    assert started(Frozen(0, 0, 1), floor=0.1).module.weights.tolist() == pytest.approx([0.1, 0.1, 0.8])


def test_bounds_are_what_the_policy_sees() -> None:
    running = started(Frozen(0.2, 0.3, 0.5), floor={"reward": 0.5}, cap={"safe": 0.1})
    expected = [0.5, 0.4, 0.1]
    assert running.module.weights.tolist() == pytest.approx(expected)
    assert running.update(*COUNTS[0]) == pytest.approx(expected)
    assert running.callback.controller.weights.tolist() == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"floor": {"saf": 0.1}}, "Did you mean 'safe'"),
        ({"floor": 0.4}, "floors"),
        ({"cap": 0.3}, "caps"),
        ({"floor": {"lava": 0.4}, "cap": 0.39}, "'lava'"),
    ],
)
def test_bounds_that_no_weights_meet_are_refused(bounds: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        started(SoftmaxAdam(), **bounds)


def test_logits_continue_from_the_bounded_weights() -> None:
    controller = SoftmaxAdam()
    controller.setup(2)
    adopt(controller, numbers(0.5, 0.2, 0.3))
    assert controller.weights.tolist() == pytest.approx([0.5, 0.2, 0.3])
    adopt(controller, numbers(0.6, 0.0, 0.4))
    assert controller.weights.tolist() == pytest.approx([0.6, 0.0, 0.4], abs=1e-9)
    controller.step(numbers(0.1, 0.1), torch.tensor([True, True]))
    assert controller.weights.isfinite().all()


@pytest.mark.parametrize("make", [ProjectedAscent, ExponentiatedGradient, DampedAscent])
def test_a_state_with_bounds_of_its_own_stays(make) -> None:
    controller = make()
    controller.setup(2)
    before = controller.weights
    adopt(controller, numbers(0.5, 0.2, 0.3))
    assert torch.equal(controller.weights, before)


def test_logits_do_not_wind_up_behind_bounds() -> None:
    running = started(SoftmaxAdam(lr=0.05), floor={"safe": 0.3})
    for _ in range(100):
        running.update([1, 0], [10, 10])  # safe has slack
    assert running.module.weights[2] == pytest.approx(0.3)
    weights = [running.update([1, 9], [10, 10])[2] for _ in range(25)]
    assert weights[-1] > 0.4


def test_the_stall_detector_looks_past_bounds() -> None:
    running = started(Frozen(0.01, 0.04, 0.95), stall=StallDetector(updates=4), cap=0.5)
    with pytest.warns(UserWarning, match="Constraint 'safe'"):
        for _ in range(4):
            running.update([0, 9], [10, 10])


def test_a_resumed_run_is_the_same_to_the_last_bit() -> None:
    whole = started(SoftmaxAdam(lr=0.05), floor=0.3)
    expected = [whole.update(*counts) for counts in COUNTS]
    half = started(SoftmaxAdam(lr=0.05), floor=0.3)
    for counts in COUNTS[:2]:
        half.update(*counts)
    resumed = DualRun(BoundedWeights(SoftmaxAdam(lr=0.05), floor=0.3), done=2).start(saved(half.callback))
    assert [resumed.update(*counts) for counts in COUNTS[2:]] == expected[2:]
