"""Differences between variants against scipy's paired test, and the tables by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from lightning_cgrpo.cli.study.comparison import difference, sections
from tests.cli.report.conftest import made, method


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_the_interval_is_that_of_the_paired_t_test(seeds):
    draws = np.random.default_rng(seeds).normal(size=(2, seeds))
    first, other = ({seed: float(value) for seed, value in enumerate(row)} for row in draws)
    found = difference(first, other)
    low, high = stats.ttest_rel(draws[1], draws[0]).confidence_interval(0.95)
    assert (found.mean, found.mean - found.half, found.mean + found.half) == pytest.approx(
        (np.mean(draws[1] - draws[0]), low, high)
    )
    assert found.seeds == seeds and str(found).startswith("**") == (low > 0 or high < 0)


def test_values_are_paired_by_seed():
    found = difference({0: 1.0, 1: 2.0, 2: 3.0, 7: 0.0, 8: math.nan}, {2: 3.5, 1: 2.5, 0: 1.5, 9: 5.0, 8: 1.0})
    assert found == (0.5, 0.0, 3)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_two_seeds_have_no_interval():
    found = difference({0: 1.0, 1: 2.0}, {0: 1.1, 1: 2.3})
    assert found.half == math.inf and str(found) == "+0.2000"


def test_tables():
    def runs(rewards, rates, **cost):
        values = [{"reward/mean": reward, "rate/lava": rate} for reward, rate in zip(rewards, rates, strict=True)]
        tests = [{f"test/{tag}": number for tag, number in one.items()} for one in values]
        return [
            made(final=one, tests=tests[n], seed=n, **{k: v[n] for k, v in cost.items()})
            for n, one in enumerate(values)
        ]

    methods = [
        method("plain", *runs([0.5] * 3, [0.0, 0.01, 0.02], cpu_seconds=[10.0, 11.0, 12.0], peak_mb=[480] * 3)),
        method("pid", *runs([0.70, 0.71, 0.72], [0.002, 0.008, 0.022], cpu_seconds=[None, 20.0, None])),
        method("half_done", *runs([0.4], [0.0])),
    ]
    heading, training, test, cost_heading, cost = sections(methods)
    lines = training.splitlines()
    assert lines[0].startswith("Differences to plain, end of training")
    assert lines[2] == "| variant | seeds | reward | rate lava |"
    assert lines[4].startswith("| pid | 3 | **+0.2100 (+0.1852 to +0.2348)** | +0.0007 (-")
    assert lines[5] == "| half\\_done | 1 | -0.1000 | +0.0000 |"
    assert test.splitlines()[2:] == lines[2:]
    assert (heading, cost_heading) == ("## Differences between variants\n", "## Cost\n")
    lines = cost.splitlines()
    assert lines[4] == "| plain | 3 | 0.500 | 100 | 6,400 | 11 | 480 |"
    assert lines[5] == "| pid | 3 | 0.710 | 100 | 6,400 | 20 (1/3) | - |"
