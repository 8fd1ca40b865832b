"""What is on the axes."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.figures.curves import curves
from lightning_cgrpo.reporting.figures.distribution import distribution
from lightning_cgrpo.reporting.figures.phase import phase
from lightning_cgrpo.reporting.figures.style import save, style
from lightning_cgrpo.reporting.figures.sweeps import sweep_figures
from lightning_cgrpo.reporting.histogram import BINS
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.series import Series

STEPS = np.arange(10) * 10 + 5.0
SMALL = {"lava": Constraint(at_most=0.01)}


def run(series, seed=0, final=None, distributions=None):
    known = {tag: Series(STEPS, np.array(values, float)) for tag, values in series.items()}
    return Run({}, seed, 100, 100, known, final or {}, distributions or {}, {}, ())


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_all_pages_have_the_same_limits():
    methods = [
        MethodRuns(f"m{n}", {}, [run({"reward/mean": [n] * 10, "rate/lava": [0.5 / (n + 1)] * 10})], SMALL)
        for n in range(14)
    ]
    found = list(curves(methods))
    assert [name for name, _ in found] == ["curves_1", "curves_2", "curves_3"]
    for column in (0, 1):
        assert len({figure.axes[column].get_ylim() for _, figure in found}) == 1
    low, high = found[0][1].axes[1].get_ylim()
    assert low < 0 and 0.5 < high < 1


def test_means_of_other_units_have_limits_of_their_own():
    """A drift of 0.05 would be a flat line beside 20 tokens."""
    series = [{"mean/tokens": [20] * 10}, {"mean/drift": [0.05] * 10}, {"mean/drift": [0.1] * 10}]
    [(_, figure)] = curves([MethodRuns(f"m{n}", {}, [run(one)]) for n, one in enumerate(series)])
    tokens, *drifts = (axes.get_ylim()[1] for axes in figure.axes)
    assert tokens > 20 and len(set(drifts)) == 1 and 0.1 < drifts[0] < 0.2


def test_limits_are_of_the_drawn_means_and_not_of_one_seed():
    outlier = [4.0, *[0.5] * 9]
    seeds = [run({"effective_weight/lava": outlier if seed == 0 else [0.5] * 10}, seed) for seed in range(9)]
    [(_, figure)] = curves([MethodRuns("a", {}, seeds)])
    mean, std = (4 + 8 * 0.5) / 9, 3.5 / 3
    assert mean + std < figure.axes[0].get_ylim()[1] < 2.3
    # A band that reaches beyond 0 or 1, where no value does, needs no room.
    seeds = [run({"reward/mean": [seed % 2] * 10}, seed) for seed in range(4)]
    [(_, figure)] = curves([MethodRuns("a", {}, seeds)])
    assert figure.axes[0].get_ylim() == (-0.02, 1.04)


def test_phases_say_why_they_are_empty():
    moving = {"multiplier/lava": np.linspace(0, 1, 10), "rate/lava": np.linspace(0.5, 0, 10)}
    methods = [
        MethodRuns("moving", {}, [run(moving)], SMALL),
        MethodRuns("not measured", {}, [run({"multiplier/lava": np.linspace(0, 1, 10)})], SMALL),
    ]
    [(_, figure)] = phase(methods)
    assert [texts(axes) for axes in figure.axes[:2]] == [[], ["rate not logged"]]
    [(_, figure)] = phase(methods[1:])
    assert texts(figure.axes[0]) == ["rate not logged"]
    both = {**SMALL, "battery": Constraint(at_most=0.1)}
    watched = {**SMALL, "battery": Constraint(at_most=0.1, role="monitor")}
    series = {**moving, "multiplier/battery": np.linspace(0, 1, 10), "rate/battery": np.linspace(0.5, 0, 10)}
    [(_, figure)] = phase([MethodRuns("a", {}, [run(series)], both), MethodRuns("b", {}, [run(series)], watched)])
    assert [texts(axes) for axes in figure.axes[:4]] == [[], [], [], ["monitored only"]]


def swept(rewards):
    methods = []
    for n, reward in enumerate(rewards):
        weights = {"class_path": "FixedWeights", "init_args": {"weights": {"lava": n / 10}}}
        of = {"callbacks": {"FixedWeights": weights}}
        final = {"reward/mean": reward, "rate/lava": 0.5}
        one = run({"reward/mean": [reward] * 10, "rate/lava": [0.5] * 10}, final=final)
        methods.append(MethodRuns(f"m{n}", of, [replace(one, method=of)]))
    [(_, figure)] = sweep_figures(methods)
    return [axes.get_ylim() for axes in figure.axes[:2]]


@pytest.mark.parametrize(
    ("rewards", "from_zero"),
    [((0.1, 0.5, 0.9), True), ((-0.5, 0.5, 0.9), False), ((-3, -2, -1), False), ((0.8, 0.85, 0.9), False)],
)
def test_sweeps_show_all_rewards(rewards, from_zero):
    (low, high), rates = swept(rewards)
    assert (low == 0) == from_zero and low <= min(rewards) and high >= max(rewards)
    assert rates[0] == 0


def test_the_mean_of_a_distribution_is_that_of_the_table():
    """Weights beyond 2 lie in the last bin, which says so."""
    shares = [0.5, *[0.0] * (BINS - 2), 0.5]
    final = {"effective_weight/lava": 3.25, "multiplier/lava": 0.125}
    one = run({"effective_weight/lava": [3.25] * 10}, final=final, distributions={"lava": shares})
    [(_, figure)] = distribution([MethodRuns("a", {}, [one], SMALL)])
    [axes] = figure.axes
    assert texts(axes) == ["λ 0.125\nmean 3.25"]
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "≥ 2"


def test_text_of_a_pdf_stays_text(shipped_fonts, tmp_path):
    """Journals refuse fonts of type 3."""
    with style():
        figure = plt.figure()
        figure.text(0.5, 0.5, "lava")
        save(figure, tmp_path / "figure")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/CIDFontType2" in content and b"/Type3" not in content
