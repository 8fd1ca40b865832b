"""docs/claims.md has the tables that `benchmarks.claims` computes, and a changed number changes a verdict."""

import re

import pytest
from scipy import stats

from benchmarks import claims
from benchmarks.claims_of_the_paper import Comparison, Spread, compare

METHOD, OTHER = "gridworld/paper/scalarized_advantages_lava_0.01", "gridworld/paper/scalarized_rewards_lava_0.01"


def test_the_page_has_the_computed_tables(capsys):
    claims.main([])
    page = claims.PAGE.read_text()
    assert capsys.readouterr().out.strip() in page, "run `python -m benchmarks.claims --write`"
    before = page.partition(claims.MARKS[0])[0]
    assert not re.search("|".join(claims.VERDICTS), before), "no verdict is typed by hand"


def test_a_changed_number_changes_the_verdict(monkeypatch):
    def verdict():
        (row,) = [
            row
            for _, rows in claims.claim_rows()
            for row in rows
            if row.claim == "Scalarized advantages reach more goals"
        ]
        return row.verdicts[0]

    values, change = claims._values_in, {}

    def changed(method, key):
        by_seed = values(method, key)
        return {seed: value + (change.get(seed, 0) if method == METHOD else 0) for seed, value in by_seed.items()}

    monkeypatch.setattr(claims, "_values_in", changed)
    assert verdict() == "likely", "one of three differences fails the correction"
    change.update(dict.fromkeys(range(5), 0.02))
    assert verdict() == "shown"
    change[0] = -0.1
    assert verdict() == "not shown"
    change.update(dict.fromkeys(range(5), -0.1))
    assert verdict() == "mixed"


@pytest.mark.parametrize(
    ("sides", "adjusted", "told"),
    [
        ((1, 1), (0.01, 0.05), "shown"),
        ((1, 1), (0.01, 0.06), "likely"),
        ((1, 0), (0.01, 0.01), "not shown"),
        ((1, -1, 0), (0.01, 0.01, 0.01), "mixed"),
        ((-1, -1), (0.01, 0.2), "unlikely"),
        ((-1,), (0.01,), "refuted"),
    ],
)
def test_verdicts(sides, adjusted, told):
    assert claims.verdict(sides, adjusted) == told


def test_holm():
    assert claims.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("expected", "margin", "side"),
    [("more", 0, 1), ("less", 0, -1), ("same", 0.03, 1), ("same", 0.022, 0), ("same", 0.01, -1)],
)
def test_sides_of_a_difference(expected, margin, side):
    """+0.020 (+0.014 to +0.025)."""
    outcome = claims.decide_test(compare("goals", METHOD, OTHER, "reward/mean", expected, margin))
    assert outcome.side == side and "+0.020 (+0.014 to +0.025), 5 seeds" in outcome.text
    method, other = (claims.values(name, "reward/mean") for name in (METHOD, OTHER))
    apart = [method[seed] - other[seed] for seed in method]
    if expected == "same":
        sign = "less" if sum(apart) > 0 else "greater"
        bound = margin if sum(apart) > 0 else -margin
        p = stats.ttest_1samp(apart, bound, alternative=sign).pvalue
        assert outcome.p == pytest.approx(min(p, 1 - p))
    else:
        assert outcome.p == pytest.approx(stats.ttest_1samp(apart, 0).pvalue)


def test_several_pairs_are_averaged_by_seed():
    whole = claims.decide_test(Comparison("goals", (METHOD, METHOD), (OTHER, OTHER), "reward/mean"))
    assert whole == claims.decide_test(compare("goals", METHOD, OTHER, "reward/mean"))


def test_a_spread_beside_itself_decides_nothing():
    outcome = claims.decide_test(Spread("goals", (METHOD,), (METHOD,), "reward/mean"))
    assert outcome.side == 0 and outcome.p == 1


def test_equal_runs_of_two_studies_are_all_seeds():
    method = "gridworld/paper/scalarized_advantages_lava_0.01_battery_0.01"
    assert method in claims.SAME and sorted(claims.values(method, "rate/lava")) == [0, 1, 2, 3, 4]
