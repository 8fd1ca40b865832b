"""What is on the axes."""

import matplotlib.pyplot as plt
import numpy as np

from lightning_cgrpo.cli.report.figures.curves import curves
from lightning_cgrpo.cli.report.figures.style import figure_style, save_figure
from lightning_cgrpo.cli.report.figures.timeline import front, timeline
from lightning_cgrpo.run.record import RunRecord
from lightning_cgrpo.run.runs import Run
from lightning_cgrpo.run.series import Series
from tests.cli.report.conftest import bounds, made, method, summary

SMALL = bounds(lava="at_most 0.01")


def test_all_pages_have_the_same_limits():
    series = [{"reward/mean": [n] * 10, "rate/lava": [0.5 / (n + 1)] * 10} for n in range(14)]
    drawn = list(curves([method(f"m{n}", made(one, constraints=SMALL)) for n, one in enumerate(series)]))
    assert [name for name, _ in drawn] == ["curves_1", "curves_2", "curves_3"]
    for column in (0, 1):
        assert len({figure.axes[column].get_ylim() for _, figure in drawn}) == 1
    low, high = drawn[0][1].axes[1].get_ylim()
    assert low < 0 and 0.5 < high < 1


def test_each_mean_has_an_axis_of_its_own():
    """A drift of 0.05 would be a flat line beside 20 tokens."""
    series = {"mean/tokens": [20] * 10, "mean/drift": [0.05] * 10}
    [(_, figure)] = curves([method("a", made(series, constraints={}))])
    assert [axes.get_ylabel() for axes in figure.axes] == ["mean of tokens", "mean of drift"]
    tokens, drift = (axes.get_ylim()[1] for axes in figure.axes)
    assert tokens > 20 and 0.05 < drift < 0.1


def test_the_axis_of_rates_zooms_to_the_thresholds():
    """A monitored rate, and the beginning of training, don't pin the axis at 0; upper bounds have another axis."""
    constraints = bounds(safe="at_least 0.95", sure="at_least 0.9", rare="at_least 0.9 monitor", long="at_most 0.3")
    late = {"rate/safe": [0.1, *[0.96] * 9], "rate/sure": [0.9] * 10, "rate/rare": [0.0] * 10, "rate/long": [0.2] * 10}
    [(_, figure)] = curves([method("a", made(late, constraints=constraints))])
    high, low = figure.axes
    assert (high.get_ylabel(), low.get_ylabel()) == ("rate, to be high", "rate, to be low")
    assert 0.55 < high.get_ylim()[0] < 0.61 and 1 < high.get_ylim()[1] < 1.05
    # An enforced rate is visible, however far it is from its threshold.
    far = {"rate/safe": [0.2] * 10}
    [(_, figure)] = curves([method("a", made(far, constraints=bounds(safe="at_least 0.95")))])
    assert figure.axes[0].get_ylim()[0] < 0.2


def test_lines_break_where_values_are_missing():
    steps = np.array([5.0, 15.0, 25.0, 65.0, 75.0])
    series = {"reward/mean": Series(steps, np.ones(5))}
    run = Run(RunRecord.read(summary()), series, {}, {}, 10.0)
    [(_, figure)] = curves([method("a", run)])
    [drawn] = figure.axes[0].lines
    x, y = drawn.get_data()
    assert np.isnan(y[(x > 25) & (x < 65)]).any() and np.isfinite(y[np.isin(x, steps)]).all()


def test_strips_show_when_thresholds_were_met():
    rates = {"rate/lava": [0.05] * 3 + [0.005] * 7}
    [(name, figure)] = timeline([method("a", made(rates, constraints=SMALL)), method("b", made({}, constraints={}))])
    met, missed = figure.axes[0].collections
    assert name == "timeline" and [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["lava <= 0.01"]
    edges = [sorted({x for path in strip.get_paths() for x in path.vertices[:, 0]}) for strip in (met, missed)]
    assert edges[0][0] == 30 and edges[0][-1] == 100 and edges[1][0] == 0 and edges[1][-1] == 30


def test_the_front_has_a_point_per_run():
    good, bad = ({"rate/lava": [rate] * 10, "reward/mean": [0.5] * 10} for rate in (0.005, 0.05))
    runs = [made(one, {"reward/mean": 0.5}, constraints=SMALL, seed=n) for n, one in enumerate((good, bad))]
    [(_, figure)] = front([method("a", *runs)])
    points = figure.axes[0].collections[0].get_offsets()
    assert points.tolist() == [[1.0, 0.5], [0.0, 0.5]]
    assert list(front([method("one", runs[0])])) == []


def test_limits_are_of_the_drawn_means_and_not_of_one_seed():
    outlier = [4.0, *[0.5] * 9]
    seeds = [made({"effective_weight/lava": [0.5] * 10 if seed else outlier}, seed=seed) for seed in range(9)]
    [(_, figure)] = curves([method("a", *seeds)])
    mean, std = (4 + 8 * 0.5) / 9, 3.5 / 3
    assert mean + std < figure.axes[0].get_ylim()[1] < 2.3
    # A band that reaches beyond 0 or 1, where no value does, needs no room.
    [(_, figure)] = curves([method("a", *(made({"reward/mean": [seed % 2] * 10}, seed=seed) for seed in range(4)))])
    assert figure.axes[0].get_ylim() == (-0.02, 1.04)


def test_a_peak_of_one_update_does_not_flatten_the_other_curves():
    run = made()
    run.series["effective_weight/lava"] = Series(np.arange(100.0), np.where(np.arange(100) == 30, 170.0, 0.5))
    [(_, figure)] = curves([method("a", run)])
    assert 0.5 < figure.axes[0].get_ylim()[1] < 5


def test_thresholds_are_drawn_as_they_were_in_force():
    line = np.linspace(0.5, 0.1, 10)
    series = {"rate/lava": [0.2] * 10, "threshold/lava": line, "rate/safe": [0.9] * 10, "threshold/safe": [0.8] * 10}
    [(_, figure)] = curves([method("a", made(series))])
    high, low = ([d.get_ydata() for d in axes.lines if d.get_linestyle() == "--"] for axes in figure.axes[:2])
    assert len(high) == len(low) == 1 and np.array_equal(low[0], line) and set(high[0]) == {0.8}


def test_text_of_a_pdf_stays_text(shipped_fonts, tmp_path):
    """Journals refuse fonts of type 3."""
    with figure_style():
        figure = plt.figure()
        figure.text(0.5, 0.5, "lava")
        save_figure(figure, tmp_path / "figure")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/CIDFontType2" in content and b"/Type3" not in content
