"""Which cells are bold and marked, and how the formats write them."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.control import control_table
from lightning_cgrpo.reporting.results import final_table, test_table
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.series import Series
from lightning_cgrpo.reporting.tables import comma_separated, latex, markdown

tested_table = test_table
test_table.__test__ = False  # type: ignore[attr-defined]

LAVA, FORMED = Constraint(at_most=0.01), Constraint(at_least=0.9)
CONSTRAINTS = {"lava": LAVA, "well_formed": FORMED}


def run(seed, reward, lava, formed, tested=None, updates=100):
    final = {"reward/mean": reward, "rate/lava": lava, "rate/well_formed": formed, "multiplier/reward": 0.5}
    evaluations = {} if tested is None else {"test/reward/mean": tested, "test/rate/lava": 0.02}
    return Run({}, seed, updates, 100, {}, final, {}, evaluations, ())


def method(label, *runs, constraints=CONSTRAINTS):
    return MethodRuns(label, {}, list(runs), constraints)


def rows(table):
    """The cells by method and column."""
    titles = [column.title for column in table.columns]
    return {label: dict(zip(titles, cells, strict=True)) for label, _, cells in table.rows}


def bold(table):
    return [(label, title) for label, cells in rows(table).items() for title, cell in cells.items() if cell.bold]


def marked(table):
    return {(label, title) for label, cells in rows(table).items() for title, cell in cells.items() if cell.marked}


@pytest.fixture
def methods():
    return [
        method("best, 100 % & more", run(0, 0.9, 0.0105, 0.95), run(1, 0.8, 0.0111, 0.89)),
        method("safer_one", run(0, 0.7, 0.002, 0.99, tested=0.6)),
        method("cheat", run(0, 1.0, 0.0112, 0.95)),
        method("malformed", run(0, 1.0, 0.001, 0.88)),
        method("measured nothing", Run({}, 0, 100, 100, {}, {}, {}, {}, ())),
    ]


def test_bold_is_the_best_reward_of_those_that_meet_their_thresholds(methods):
    """0.0108 on average is within 10 % of 0.01; 0.88 lacks 0.02 where 0.1 may be violated and so 0.01 is tolerated."""
    table = final_table(methods, 1 / 8)
    assert bold(table) == [("best, 100 % & more", "reward")]
    assert marked(table) == {("cheat", "rate lava ≤ 0.01"), ("malformed", "rate well_formed ≥ 0.9")}


def test_unfinished_methods_never_win_and_are_marked(methods):
    methods[0].runs[1] = run(1, 0.8, 0.0111, 0.89, updates=40)
    for table in (final_table(methods, 1 / 8), control_table(methods)):
        title = "best, 100 % & more (40 to 100 of 100)"
        assert next(iter(rows(table))) == title
        assert title in markdown(table) and f'"{title}"' in comma_separated(table)
        assert "more (40 to 100 of 100)" in latex(table)
    assert bold(final_table(methods, 1 / 8)) == [("safer_one", "reward")]


def test_there_is_a_best_for_each_set_of_thresholds():
    watched = Constraint(at_most=0.9, role="monitor")
    found = [
        method("strict", run(0, 0.7, 0.01, 0.95)),
        method("strict but worse", run(0, 0.6, 0.01, 0.95)),
        method("loose", run(0, 0.9, 0.04, 0.95), constraints={"lava": Constraint(at_most=0.05), "well_formed": FORMED}),
        method("one", run(0, 0.8, 0.01, 0.95), constraints={"lava": LAVA, "well_formed": watched}),
        method("none", run(0, 1.0, 0.5, 0.95), constraints={}),
    ]
    assert [label for label, _ in bold(final_table(found, 1 / 8))] == ["strict", "loose", "one"]
    assert [label for label, _ in bold(final_table(found[4:], 1 / 8))] == ["none"]


def test_monitored_rates_are_neither_marked_nor_have_a_threshold():
    watched = {"lava": Constraint(at_most=0.01, role="monitor")}
    found = [method("a", run(0, 0.7, 0.5, 0.95), constraints=watched)]
    table = final_table(found, 1 / 8)
    assert marked(table) == set() and rows(table)["a"]["rate lava"].note == ""
    both = final_table([*found, method("b", run(0, 0.7, 0.5, 0.95), constraints={"lava": LAVA})], 1 / 8)
    assert marked(both) == {("b", "rate lava ≤ 0.01")}
    assert "0.5000 (monitored) |" in markdown(both) and "0.5000 ! |" in markdown(both)


def test_thresholds_that_differ_are_in_the_cells():
    looser = {"lava": Constraint(at_most=0.05)}
    found = [
        method("a", run(0, 0.7, 0.004, 1), constraints={"lava": LAVA}),
        method("b", run(0, 0.7, 0.02, 1), constraints=looser),
    ]
    table = final_table(found, 1 / 8)
    assert "| rate lava |" in markdown(table) and "0.0040 (≤ 0.01) |" in markdown(table)
    assert rows(table)["b"]["rate lava"].note == "≤ 0.05" and marked(table) == set()
    [head, first, _] = csv.reader(io.StringIO(comma_separated(table)))
    assert dict(zip(head, first, strict=True))["rate lava note"] == "≤ 0.01"


def test_fewer_seeds_than_the_method_has_are_told(methods):
    methods[1].runs.extend([run(1, 0.8, 0.002, 0.99), run(2, 0.9, 0.002, 0.99)])
    table = tested_table(methods)
    assert "| safer\\_one | 3 | 0.600 (1/3) | 0.0200 (1/3) ! |" in markdown(table)
    [head, first] = csv.reader(io.StringIO(comma_separated(table)))
    row = dict(zip(head, first, strict=True))
    assert row["seeds"] == "3" and row["reward n"] == "1" and row["reward std"] == ""


def test_markdown(methods):
    text = markdown(final_table(methods, 1 / 8))
    assert "last 1/8" in text
    assert "| best, 100 % & more | 2 | **0.850 ± 0.071** | 0.0108 ± 0.0004 | 0.9200 ± 0.0424 |" in text
    assert "| safer\\_one | 1 | 0.700 | 0.0020 |" in text
    assert "0.0112 !" in text and "| measured nothing | 1 | - |" in text


def test_csv_has_all_digits(methods):
    [head, first, *_] = csv.reader(io.StringIO(comma_separated(final_table(methods, 1 / 8))))
    row = dict(zip(head, first, strict=True))
    assert row["method"] == "best, 100 % & more" and row["reward"] == "0.85" and row["reward n"] == "2"
    assert float(row["reward std"]) == pytest.approx(0.0707107)
    assert row["rate lava ≤ 0.01 violated"] == "0"


def test_latex_is_balanced_and_escaped(methods):
    for table in (final_table(methods, 1 / 8), control_table(methods)):
        text = latex(table)
        assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
        for name in ("table", "tabular"):
            assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 1
        body = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0]
        for line in body.splitlines():
            assert line.count(" & ") == len(table.columns) + 1 and line.endswith("\\\\")
        for rule in ("toprule", "midrule", "bottomrule"):
            assert f"\\{rule}" in text
    assert "best, 100 \\% \\& more & 2 & \\textbf{0.850 $\\pm$ 0.071}" in latex(final_table(methods, 1 / 8))
    assert "safer\\_one" in text and not set("≤≥±") & set(text)


def logged(seed, reward, lava):
    """A run of 100 updates in bins of 10, with a window of 25 updates (three bins)."""
    steps = np.arange(10) * 10 + 5.0
    series = {"reward/mean": Series(steps, np.array(reward)), "rate/lava": Series(steps, np.array(lava))}
    return Run({}, seed, 100, 100, series, {"reward/mean": reward[-1]}, {}, {}, (), 10.0)


def test_control_begins_where_the_reward_is_there():
    """The rate of the untrained policy is 0, which says nothing."""
    learns = logged(0, [0, 0, 0, 0.6, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0.2, *[0.005] * 6])
    never = logged(1, [0.0] * 10, [0.0] * 10)
    table = control_table([method("a", learns, constraints={"lava": LAVA}), method("b", never, constraints={})])
    cells = rows(table)["a"]
    assert cells["time to reward"].value.mean == 60
    assert cells["time to feasibility"].value.mean == 70
    assert cells["lava: feasible from"].value.mean == 70
    # The average still has the 0.2 at the beginning of the second half.
    assert cells["lava: overshoot"].value.mean == pytest.approx(0.21 / 3 - 0.01)
    assert cells["lava: held"].value.mean == pytest.approx(4 / 6)
    assert cells["reward spread"].value is None
    assert all(cell.value is None for cell in rows(table)["b"].values())
    both = control_table([method("a", learns, never, constraints={"lava": LAVA})])
    assert "| 50 (1/2) | 70 (1/2) |" in markdown(both)  # near the mean of 0.5


def test_control_lists_enforced_constraints_only():
    watched = {"lava": Constraint(at_most=0.01, role="monitor")}
    table = control_table([method("a", logged(0, [1.0] * 10, [0.5] * 10), constraints=watched)])
    assert not any("lava" in column.title for column in table.columns)
    assert rows(table)["a"]["time to feasibility"].value is None


def test_a_rate_that_was_never_measured(methods):
    table = control_table(methods)
    assert all(cell.value is None for cells in rows(table).values() for cell in cells.values())


def test_a_test_makes_a_table(methods):
    table = tested_table(methods)
    assert [label for label, _, _ in table.rows] == ["safer_one"]
    assert [column.title for column in table.columns] == ["reward", "rate lava ≤ 0.01"]
    # A rate that wasn't tested isn't taken to be met.
    assert not table.rows[0][2][0].bold and table.rows[0][2][1].marked
    assert tested_table(methods[:1]) is None


GSM8K = {
    "correctness": Constraint(at_least=0.75),
    "format": Constraint(at_least=0.99),
    "integer": Constraint(at_least=0.99),
    "truncated": Constraint(at_most=0.01, role="monitor"),
}


def solved(seed, length, correctness, formed, trained=None):
    """A run on GSM8K with a test; of training prompts as well, if their correctness is given."""
    values = {
        "reward/mean": -length / 1000,
        "rate/correctness": correctness,
        "rate/format": formed,
        "rate/integer": 0.995,
        "rate/truncated": 0.002,
        "rollout/length": length,
    }
    evaluations = {f"test/{tag}": value for tag, value in values.items()}
    if trained is not None:
        evaluations |= {f"test_train/{tag}": v for tag, v in {**values, "rate/correctness": trained}.items()}
    return Run({}, seed, 100, 100, {}, {}, {}, evaluations, ())


def test_the_papers_table_of_gsm8k():
    """Methods by behaviors and length, with thresholds in the head; the best is the shortest that keeps to them."""
    found = [
        method("ScAdv", solved(0, 290.0, 0.76, 0.991), solved(1, 296.0, 0.78, 0.993), constraints=GSM8K),
        method("ScRew", solved(0, 310.0, 0.80, 0.995), constraints=GSM8K),
        method("GDPO", solved(0, 120.5, 0.63, 0.953), constraints=GSM8K),
    ]
    text = markdown(tested_table(found))
    lines = text.splitlines()
    assert lines[2] == (
        "| method | seeds | reward | rate correctness ≥ 0.75 | rate format ≥ 0.99 | rate integer ≥ 0.99 "
        "| rate truncated | rollout length |"
    )
    assert lines[4:] == [
        "| ScAdv | 2 | **-0.293 ± 0.004** | 0.7700 ± 0.0141 | 0.9920 ± 0.0014 | 0.9950 ± 0.0000 | 0.0020 ± 0.0000 "
        "| 293.0 ± 4.2 |",
        "| ScRew | 1 | -0.310 | 0.8000 | 0.9950 | 0.9950 | 0.0020 | 310.0 |",
        "| GDPO | 1 | -0.120 | 0.6300 ! | 0.9530 ! | 0.9950 | 0.0020 | 120.5 |",
    ]
    assert "training prompts" not in text


def test_training_prompts_are_a_row_below():
    """Measured in the same test, and never bold; thresholds met there can be missed in the test."""
    found = [
        method("ScAdv", solved(0, 290.0, 0.70, 0.99, 0.76), solved(1, 290.0, 0.70, 0.99), constraints=GSM8K),
        method("ScRew", solved(0, 310.0, 0.76, 0.99), constraints=GSM8K),
    ]
    table = tested_table(found)
    assert [(label, seeds) for label, seeds, _ in table.rows] == [
        ("ScAdv", 2),
        ("ScAdv, training prompts", 2),
        ("ScRew", 1),
    ]
    assert bold(table) == [("ScRew", "reward")]
    assert marked(table) == {("ScAdv", "rate correctness ≥ 0.75")}
    text = markdown(table)
    assert "Rows 'training prompts'" in text
    assert "| ScAdv, training prompts | 2 | -0.290 (1/2) | 0.7600 (1/2) |" in text


def with_intervals(run, name, *interval):
    ends = {f"test/rate_{side}/{name}": end for side, end in zip(("low", "high"), interval, strict=True)}
    return replace(run, evaluations={**run.evaluations, **ends})


def test_intervals_decide_where_a_test_logged_them():
    """Of seeds with nearly equal rates, one is shown to meet the threshold, one isn't, and one is shown to miss it."""
    runs = [solved(seed, 290.0, rate, 0.99) for seed, rate in enumerate((0.76, 0.752, 0.749))]
    ends = [(0.751, 0.77), (0.745, 0.76), (0.70, 0.7499)]
    runs = [with_intervals(run, "correctness", *pair) for run, pair in zip(runs, ends, strict=True)]
    found = [
        method("all", *runs, constraints=GSM8K),
        method("two", *runs[:2], constraints=GSM8K),
        method("alone", runs[0], constraints=GSM8K),
    ]
    table = tested_table(found)
    lines = markdown(table).splitlines()
    assert "Met, missed: how many seeds" in lines[0]
    cells = [line.split(" | ")[3] for line in lines[4:]]
    assert cells == [
        "0.7537 ± 0.0057 (1 met, 1 undecided, 1 missed) !",
        "0.7560 ± 0.0057 (1 met, 1 undecided)",
        "0.7600 (met, 0.751-0.770)",
    ]
    assert not [column.title for column in table.columns if "low" in column.title or "high" in column.title]
