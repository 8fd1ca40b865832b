"""Learning outcomes: a bandit whose optimum is known, and one with a constraint that can't be met.

``python -m tests.multipliers.test_learning`` prints for each run, as means over 3 seeds, the reward, the two rates, the
three weights, the deviation of the rates over updates, and the stalled constraints; docs/method.md has the table.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from examples.controllers.nupi import NuPI
from lightning_cgrpo.multipliers import PID, Controller, DampedAscent, ProjectedAscent, SoftmaxAdam, rounded_up
from tests.multipliers.bandit import FEASIBLE, INFEASIBLE, Bandit, Outcome, play

FLOOR = {"floor": 0.1}
RUNS: dict[str, tuple[Bandit, Callable[[], Controller], dict[str, Any]]] = {
    "damped ascent": (FEASIBLE, DampedAscent, {}),
    "softmax": (FEASIBLE, SoftmaxAdam, {}),
    "softmax, lr .002": (FEASIBLE, lambda: SoftmaxAdam(lr=0.002), {}),
    "exponentiated gradient": (FEASIBLE, ExponentiatedGradient, {}),
    "projected ascent": (FEASIBLE, ProjectedAscent, {}),
    "PID": (FEASIBLE, PID, {}),
    "nuPI": (FEASIBLE, NuPI, {}),
    "infeasible: damped ascent": (INFEASIBLE, DampedAscent, {}),
    "infeasible: softmax": (INFEASIBLE, SoftmaxAdam, {}),
    "infeasible: softmax, floor .1": (INFEASIBLE, SoftmaxAdam, FLOOR),
    "infeasible: EG, no clip, no bound": (INFEASIBLE, lambda: ExponentiatedGradient(clip=math.inf, bound=math.inf), {}),
    "infeasible: EG, floor .1": (INFEASIBLE, lambda: ExponentiatedGradient(clip=0.05), FLOOR | {"updates": 1500}),
    "infeasible: projected ascent, cap 100": (INFEASIBLE, lambda: ProjectedAscent(max_multiplier=100.0), {}),
    "infeasible: projected ascent, cap 5": (INFEASIBLE, lambda: ProjectedAscent(max_multiplier=5.0), {}),
    "infeasible: PID, cap 5": (INFEASIBLE, lambda: PID(max_multiplier=5.0), {}),
    "infeasible: nuPI, cap 5": (INFEASIBLE, lambda: NuPI(max_multiplier=5.0), {}),
}


def slow(*names: str) -> list[Any]:
    """Runs of three to four seconds each."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@functools.cache
def outcome(name: str, seed: int = 0) -> Outcome:
    bandit, controller, options = RUNS[name]
    return play(bandit, controller(), seed=seed, **options)


def test_optimum() -> None:
    assert FEASIBLE.optimum() == pytest.approx((2 * 0.5 + 2 * 0.8 + 3 * 0.8) / 7)


@pytest.mark.parametrize(
    "name", slow("damped ascent", "softmax", "exponentiated gradient", "projected ascent", "PID", "nuPI")
)
def test_every_controller_reaches_its_thresholds(name: str) -> None:
    result = outcome(name)
    # The sampling noise of these means is below 0.001; the rest is oscillation, and what is left of the approach.
    assert result.rates == pytest.approx(FEASIBLE.thresholds, abs=0.01)
    # The policy's entropy costs 0.010 of reward, and the margin of damped ascent as much.
    assert FEASIBLE.optimum() - 0.025 < result.reward < FEASIBLE.optimum() + 0.01
    assert result.stalled is None


@pytest.mark.slow
def test_oscillation_of_softmax_shrinks_with_its_learning_rate() -> None:
    assert outcome("softmax").std > 0.03 > 0.025 > outcome("softmax, lr .002").std


@pytest.mark.parametrize("name", slow("softmax", "EG, no clip, no bound"))
def test_infeasible_constraint_captures(name: str) -> None:
    result = outcome(f"infeasible: {name}")
    assert result.weights[2] > 0.9
    assert result.rates[0] > 0.2
    assert result.reward < 0.4
    assert result.stalled == 1


@pytest.mark.parametrize(
    "name", ["damped ascent", *slow("EG, floor .1", "projected ascent, cap 5", "PID, cap 5", "nuPI, cap 5")]
)
def test_guards_keep_the_reward_and_the_feasible_constraint(name: str) -> None:
    result = outcome(f"infeasible: {name}")
    assert result.reward > 0.85
    assert result.rates[0] == pytest.approx(0.05, abs=0.02)


@pytest.mark.slow
def test_the_default_names_a_threshold_that_works() -> None:
    """The infeasible threshold costs little reward, and the reached rate, rounded up, can be met."""
    result = outcome("infeasible: damped ascent")
    assert result.stalled == 1 and result.reached is not None
    best = replace(INFEASIBLE, thresholds=(0.05, result.reached)).optimum()
    assert result.reward > 0.95 * best
    proposed = replace(INFEASIBLE, thresholds=(0.05, rounded_up(result.reached)))
    met = play(proposed, DampedAscent())
    assert met.rates[0] == pytest.approx(0.05, abs=0.01) and met.rates[1] < proposed.thresholds[1] + 0.01
    assert met.stalled is None


if __name__ == "__main__":
    import torch

    for run in RUNS:
        results = [outcome(run, seed) for seed in range(3)]
        numbers = torch.tensor([[r.reward, *r.rates, *r.weights, r.std] for r in results]).mean(0)
        print(f"# {run:38}", *(f"{number:.3f}" for number in numbers), [r.stalled for r in results])
