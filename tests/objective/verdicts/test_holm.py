"""Holm's method, against statsmodels-style adjusted p-values computed by hand, and by simulation."""

import numpy as np

from lightning_cgrpo.objective.verdicts.holm import holm_levels


def test_adjusted_p_values_decide():
    """Adjusted: the running maximum of (K - rank) p, as R's p.adjust(method="holm") has it."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        p_values = generator.random(5) ** 4
        order = np.argsort(p_values)
        adjusted = np.empty(5)
        adjusted[order] = np.maximum.accumulate((5 - np.arange(5)) * p_values[order])
        found = holm_levels(list(p_values), 0.05)
        assert [rejected for rejected, _ in found] == list(adjusted <= 0.05)
        for p_value, (rejected, level) in zip(p_values, found, strict=True):
            assert rejected == (p_value <= level), "every test is decided by the level it is given"


def test_false_rejections_are_rare_also_of_dependent_tests():
    generator = np.random.default_rng(0)
    false = 0
    for _ in range(4_000):
        shared = generator.random()
        p_values = [shared, shared, generator.random(), 1e-9]  # three true hypotheses, two of them copies
        false += any(rejected for rejected, _ in holm_levels(p_values, 0.05)[:3])
    assert false / 4_000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4_000)
    assert holm_levels([], 0.05) == []
