"""Which cells are marked, and the numbers of the tables, by hand."""

import pytest

from lightning_cgrpo.cli.report import results
from lightning_cgrpo.cli.report.results import final_table
from lightning_cgrpo.cli.report.tables import markdown
from tests.cli.report.conftest import bounds, made, method

BOTH = bounds(lava="at_most 0.01", well_formed="at_least 0.9")
LAVA = bounds(lava="at_most 0.01")


def run(seed, reward, lava, formed, tested=None, constraints=BOTH, **about):
    final = {"reward/mean": reward, "rate/lava": lava, "rate/well_formed": formed, "multiplier/reward": 0.5}
    tests = {} if tested is None else {"test/reward/mean": tested, "test/rate/lava": 0.02}
    return made(final=final, tests=tests, seed=seed, constraints=constraints, **about)


def cells(table):
    """Label, column and cell of every value."""
    return [(row[0], head, cell) for row in table.rows for head, cell in zip(table.heads, row, strict=True)]


def marked(table):
    return {(label, head) for label, head, cell in cells(table) if cell.endswith(" !")}


@pytest.fixture
def methods():
    return [
        method("best, 100 % & more", run(0, 0.9, 0.0105, 0.95), run(1, 0.8, 0.0111, 0.89)),
        method("safer_one", run(0, 0.7, 0.002, 0.99, tested=0.6)),
        method("cheat", run(0, 1.0, 0.0112, 0.95)),
        method("malformed", run(0, 1.0, 0.001, 0.88)),
        method("measured nothing", made(constraints=BOTH)),
    ]


def test_rates_beyond_the_tolerance_are_marked(methods):
    """0.0108 on average is within 10 % of 0.01; 0.88 lacks 0.02 where 0.1 may be violated and so 0.01 is tolerated."""
    table = final_table(methods)
    assert marked(table) == {("cheat", "rate lava ≤ 0.01"), ("malformed", "rate well_formed ≥ 0.9")}
    text = markdown(table)
    assert "| best, 100 % &amp; more | 2 | 0.850 ± 0.071 | 0.0108 ± 0.0004 | 0.9200 ± 0.0424 |" in text
    assert "| safer\\_one | 1 | 0.700 | 0.0020 |" in text and "last 1/8" in text
    assert "0.0112 !" in text and "| measured nothing | 1 | - |" in text


def test_unfinished_methods_show_their_progress(methods):
    methods[0].runs[1] = run(1, 0.8, 0.0111, 0.89, updates=40)
    assert final_table(methods).rows[0][0] == "best, 100 % & more (40 to 100 of 100)"


def test_thresholds_that_differ_are_in_the_cells():
    looser, watched = bounds(lava="at_most 0.05"), bounds(lava="at_most 0.01 monitor")
    compared = [
        method("a", run(0, 0.7, 0.004, 1, constraints=LAVA)),
        method("b", run(0, 0.7, 0.02, 1, constraints=looser)),
        method("c", run(0, 0.7, 0.5, 1, constraints=watched)),
    ]
    text = markdown(final_table(compared))
    assert "| rate lava |" in text and "0.0040 (≤ 0.01) |" in text and "0.5000 (monitored) |" in text
    assert marked(final_table(compared)) == set()
    assert "rate lava ≤ 0.05" in markdown(final_table(compared[1:]))


def test_fewer_seeds_than_the_method_has_are_told(methods):
    methods[1].runs.extend([run(1, 0.8, 0.002, 0.99), run(2, 0.9, 0.002, 0.99)])
    table = results.test_table(methods)
    assert [row[0] for row in table.rows] == ["safer_one"]
    assert "| safer\\_one | 3 | 0.600 (1/3) | 0.0200 (1/3) ! |" in markdown(table)
    assert results.test_table(methods[:1]) is None


GSM8K = bounds(
    correctness="at_least 0.75", format="at_least 0.99", integer="at_least 0.99", truncated="at_most 0.01 monitor"
)


def solved(seed, length, correctness, formed, trained=None, interval=()):
    """A run on GSM8K with a test; of training prompts as well, if their correctness is given."""
    values = {
        "reward/mean": -length / 1000,
        "rate/correctness": correctness,
        "rate/format": formed,
        "rate/integer": 0.995,
        "rate/truncated": 0.002,
        "rollout/length": length,
    }
    tests = {f"test/{tag}": value for tag, value in values.items()}
    tests |= {f"test/rate_{end}/correctness": value for end, value in zip(("low", "high"), interval, strict=False)}
    if trained is not None:
        tests |= {f"test_train/{tag}": value for tag, value in (values | {"rate/correctness": trained}).items()}
    return made(tests=tests, seed=seed, constraints=GSM8K)


def test_training_prompts_are_a_row_below():
    """Measured in the same test; thresholds met there can be missed in the test."""
    compared = [
        method("ScAdv", solved(0, 290.0, 0.70, 0.99, 0.76), solved(1, 290.0, 0.70, 0.99)),
        method("ScRew", solved(0, 310.0, 0.76, 0.99)),
    ]
    table = results.test_table(compared)
    assert marked(table) == {("ScAdv", "rate correctness ≥ 0.75")}
    assert "| ScAdv, training prompts | 2 | -0.290 (1/2) | 0.7600 (1/2) |" in markdown(table)


def test_intervals_decide_where_a_test_logged_them():
    """Of seeds with nearly equal rates, one is shown to meet the threshold, one isn't, and one is shown to miss it."""
    ends = [(0.751, 0.77), (0.745, 0.76), (0.70, 0.7499)]
    rates = (0.76, 0.752, 0.749)
    runs = [solved(seed, 290.0, rates[seed], 0.99, interval=ends[seed]) for seed in range(3)]
    table = results.test_table([method("all", *runs), method("two", *runs[:2]), method("alone", runs[0])])
    lines = markdown(table).splitlines()
    assert "Met, missed: how many seeds" in lines[0]
    assert [line.split(" | ")[3] for line in lines[4:]] == [
        "0.7537 ± 0.0057 (1 met, 1 undecided, 1 missed) !",
        "0.7560 ± 0.0057 (1 met, 1 undecided)",
        "0.7600 (met, 0.751-0.770)",
    ]
