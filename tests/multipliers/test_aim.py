"""Aiming for a test: the aim passes with the promised probability, and no looser aim does."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.multipliers import AimForTest


@pytest.mark.parametrize("threshold", [0.15, 0.01, 0.5])
@pytest.mark.parametrize("prompts", [100, 5000])
def test_passes_with_the_confidence(threshold: float, prompts: int) -> None:
    aim = AimForTest(prompts, confidence=0.9)(torch.tensor([threshold], dtype=torch.float64)).item()
    assert binom.cdf(round(prompts * threshold), prompts, aim) == pytest.approx(0.9, abs=1e-6)
    assert 0 < aim < threshold


def test_a_threshold_below_one_violation_is_no_looser() -> None:
    thresholds = torch.tensor([0.0, 1e-4, 0.004], dtype=torch.float64)
    assert AimForTest(100)(thresholds).tolist() == [0, 1e-4, pytest.approx(1 - (1 - 0.05 / 3) ** 0.01)]


@pytest.mark.parametrize("share", [0.25, 0.1, 0.05])
def test_a_subset_passes_too(share: float) -> None:
    """By simulation, with its own number of prompts."""
    prompts = int(1000 * share)
    aim = AimForTest(1000, subsets={"steps=2": prompts})
    threshold = torch.tensor([0.15, 0.15], dtype=torch.float64)
    whole, subset = aim(threshold, [None, {"steps": 2}]).tolist()
    assert subset < whole < 0.15
    drawn = np.random.default_rng(0).binomial([prompts, 1000], [subset, whole], (20_000, 2))
    assert (drawn <= [math.floor(prompts * 0.15), 150]).all(1).mean() == pytest.approx(0.95, abs=0.006)
    with pytest.raises(UserError, match="steps=3"):
        aim(threshold, [None, {"steps": 3}])


def test_all_constraints_pass_together() -> None:
    thresholds = torch.tensor([0.15, 0.01, 0.01], dtype=torch.float64)
    aims = AimForTest(1000, 0.95)(thresholds)
    passes = [binom.cdf(round(1000 * d), 1000, p) for d, p in zip(thresholds.tolist(), aims.tolist(), strict=True)]
    assert sum(1 - p for p in passes) == pytest.approx(0.05, abs=1e-6)


def test_a_larger_test_costs_less() -> None:
    threshold = torch.tensor([0.15], dtype=torch.float64)
    margins = [(threshold - AimForTest(prompts)(threshold)).item() for prompts in (100, 1000, 10_000)]
    assert margins == sorted(margins, reverse=True)
    assert margins[0] / margins[2] == pytest.approx(10, rel=0.2)
