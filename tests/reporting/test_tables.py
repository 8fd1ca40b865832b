"""Which cells are bold and marked, and how the formats write them."""

import csv
import io

import pytest

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.results import control_table, final_table, test_table
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import Control
from lightning_cgrpo.reporting.tables import comma_separated, latex, markdown

tested_table = test_table
test_table.__test__ = False  # type: ignore[attr-defined]

CONSTRAINTS = {"lava": Constraint(at_most=0.01), "well_formed": Constraint(at_least=0.9)}


def run(seed, reward, lava, formed, tested=None):
    final = {"reward/mean": reward, "rate/lava": lava, "rate/well_formed": formed, "multiplier/reward": 0.5}
    control = {"lava": Control(100.0 if seed else None, 0.001, 0.002, 1.0)}
    evaluations = {} if tested is None else {"test/reward/mean": tested, "test/rate/lava": 0.02}
    return Run({}, seed, 100, 100, {}, final, control, {}, evaluations, ())


@pytest.fixture
def methods():
    return [
        MethodRuns("best, 100 % & more", {}, [run(0, 0.9, 0.0105, 0.95), run(1, 0.8, 0.0111, 0.89)], CONSTRAINTS),
        MethodRuns("safer_one", {}, [run(0, 0.7, 0.002, 0.99, tested=0.6)], CONSTRAINTS),
        MethodRuns("cheat", {}, [run(0, 1.0, 0.0112, 0.95)], CONSTRAINTS),
        MethodRuns("malformed", {}, [run(0, 1.0, 0.001, 0.88)], CONSTRAINTS),
        MethodRuns("measured nothing", {}, [Run({}, 0, 0, 100, {}, {}, {}, {}, {}, ())], CONSTRAINTS),
    ]


def test_bold_is_the_best_reward_of_those_that_meet_their_thresholds(methods):
    """0.0108 on average is within 10 % of 0.01; 0.88 lacks 0.02 where 0.1 may be violated and so 0.01 is tolerated."""
    table = final_table(methods, 1 / 8)
    bold = [(label, n) for label, _, cells in table.rows for n, cell in enumerate(cells) if cell.bold]
    assert bold == [("best, 100 % & more", 0)]
    marked = {
        (label, table.columns[n].title) for label, _, cells in table.rows for n, c in enumerate(cells) if c.marked
    }
    assert marked == {("cheat", "rate lava ≤ 0.01"), ("malformed", "rate well_formed ≥ 0.9")}


def test_markdown(methods):
    text = markdown(final_table(methods, 1 / 8))
    assert "last 1/8" in text
    assert "| best, 100 % & more | 2 | **0.850 ± 0.071** | 0.0108 ± 0.0004 | 0.9200 ± 0.0424 |" in text
    assert "| safer\\_one | 1 | 0.700 | 0.0020 |" in text
    assert "0.0112 !" in text and "| measured nothing | 1 | - |" in text


def test_csv_has_all_digits(methods):
    [head, first, *_] = csv.reader(io.StringIO(comma_separated(final_table(methods, 1 / 8))))
    row = dict(zip(head, first, strict=True))
    assert row["method"] == "best, 100 % & more" and row["reward"] == "0.85"
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


def test_a_seed_that_never_was_feasible_is_counted(methods):
    table = control_table(methods)
    column = next(n for n, c in enumerate(table.columns) if c.title == "lava: first feasible")
    cells = {label: row[column] for label, _, row in table.rows}
    assert cells["best, 100 % & more"].value.mean == 100 and cells["best, 100 % & more"].note == " (1/2)"
    assert cells["cheat"].value is None


def test_a_test_makes_a_table(methods):
    table = tested_table(methods)
    assert [label for label, _, _ in table.rows] == ["safer_one"]
    assert [column.title for column in table.columns] == ["reward", "rate lava ≤ 0.01"]
    # A rate that wasn't tested isn't taken to be met.
    assert not table.rows[0][2][0].bold and table.rows[0][2][1].marked
    assert tested_table(methods[:1]) is None
