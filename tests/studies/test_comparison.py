"""Differences between variants against scipy's paired test, and the tables."""

import math

import numpy as np
import pytest
from scipy import stats

from lightning_cgrpo.studies.comparison import Cost, cost_text, difference, differences_text, write_csv


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_the_interval_is_that_of_the_paired_t_test(seeds):
    draws = np.random.default_rng(seeds).normal(size=(2, seeds))
    first, other = ({seed: float(value) for seed, value in enumerate(row)} for row in draws)
    found = difference(first, other)
    low, high = stats.ttest_rel(draws[1], draws[0]).confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(draws[1] - draws[0]), low, high))
    assert found.seeds == seeds and found.clear == (low > 0 or high < 0)


def test_values_are_paired_by_seed():
    found = difference({0: 1.0, 1: 2.0, 2: 3.0, 7: 0.0, 8: math.nan}, {2: 3.5, 1: 2.5, 0: 1.5, 9: 5.0, 8: 1.0})
    assert (found.mean, found.low, found.high, found.seeds) == (0.5, 0.5, 0.5, 3)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_two_seeds_have_no_interval():
    found = difference({0: 1.0, 1: 2.0}, {0: 1.1, 1: 2.3})
    assert found.low is None and found.high is None and not found.clear and str(found) == "+0.2000"


MEASURED = {
    "plain": {seed: {"reward/mean": 0.5, "rate/lava": 0.01 * seed, "multiplier/lava": 1.0} for seed in range(3)},
    "pid": {
        seed: {"reward/mean": 0.7 + 0.01 * seed, "rate/lava": 0.01 * seed + 0.002 * (-1) ** seed} for seed in range(3)
    },
    "half_done": {0: {"reward/mean": 0.4}},
}
COSTS = {
    "plain": {seed: Cost(100, 6400, 10.0 + seed, 480) for seed in range(3)},
    "pid": {0: Cost(100, 6400, None, None), 1: Cost(100, 6400, 20.0, 500)},
}


def test_tables():
    lines = differences_text(MEASURED, "test").splitlines()
    assert lines[0].startswith("Differences to plain, test") and lines[2] == "| variant | seeds | reward | rate lava |"
    assert lines[4].startswith("| pid | 3 | **+0.2100 (+0.1852 to +0.2348)** | +0.0007 (-")
    assert lines[5] == "| half\\_done | 1 | -0.1000 | - |"
    lines = cost_text(COSTS, MEASURED).splitlines()
    assert lines[4] == "| plain | 3 | 0.500 | 100 | 6,400 | 11 | 480 |"
    assert lines[5] == "| pid | 2 | 0.710 | 100 | 6,400 | 20 (1/2) | 500 (1/2) |"


def test_files_hold_all_digits(tmp_path):
    write_csv(tmp_path, {"test": MEASURED}, COSTS)
    rows = [line.split(",") for line in (tmp_path / "differences.csv").read_text().splitlines()]
    assert rows[1][:5] == ["pid", "plain", "test", "reward/mean", "3"] and float(rows[1][5]) == pytest.approx(0.21)
    assert rows[3] == ["half_done", "plain", "test", "reward/mean", "1", rows[3][5], "", ""]
    assert (tmp_path / "cost.csv").read_text().splitlines()[4] == "pid,0,100,6400,,"
