"""The paper's figure of sweeps: final reward and rates of methods that differ in a fixed weight alone.

python -m benchmarks.sweeps docs/results/gridworld/sweep     # draws sweep.png there, from its committed runs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.cli.report.figures.style import GRAY, METHODS, add_legend, figure_style, legend_line, save_figure
from lightning_cgrpo.cli.report.measures import statistic
from lightning_cgrpo.cli.report.methods import MethodRuns, collect
from lightning_cgrpo.cli.report.results import MEASURED, REWARD
from lightning_cgrpo.run.identity import key_of
from lightning_cgrpo.settings.configuration import get, short_class

FIXED = "FixedWeights"
FEWEST = 3
"""Fewest values of a weight in a sweep."""


@dataclass(frozen=True)
class Weighted:
    """A method with fixed weights.

    Args:
        weights: by component; a component that is not named has weight 0.
    """

    method: MethodRuns
    weights: Mapping[str, float]

    def weight(self, component: str) -> float:
        return self.weights.get(component, 0.0)


@dataclass
class Line:
    """Methods that differ in the swept weight alone, with rising weights.

    Args:
        name: the methods' estimator.
    """

    name: str
    points: list[Weighted]


@dataclass
class Sweep:
    """A sweep over one component's weight.

    Args:
        component: whose weight is swept.
        rows: lines, by the other weights in words.
    """

    component: str
    rows: dict[str, list[Line]]

    @property
    def lines(self) -> list[Line]:
        return [line for lines in self.rows.values() for line in lines]

    @property
    def methods(self) -> list[MethodRuns]:
        return [point.method for line in self.lines for point in line.points]


def find_sweeps(methods: Sequence[MethodRuns]) -> list[Sweep]:
    """A sweep over each weight that takes the most different values, at least `FEWEST`."""
    weighted = []
    for method in methods:
        weights = weights_of(method)
        if weights is not None:
            weighted.append(Weighted(method, weights))
    values = _values(weighted)
    most = max((len(taken) for taken in values.values()), default=0)
    sweeps = []
    for component, taken in values.items():
        if len(taken) < max(most, FEWEST):
            continue
        others = [name for name, other in values.items() if name != component and len(other) > 1]
        sweep = _sweep(component, others, weighted)
        if sweep.rows:
            sweeps.append(sweep)
    return sweeps


def weights_of(method: MethodRuns) -> dict[str, float] | None:
    """A method's fixed weights by component; None without `FixedWeights`."""
    settings = method.runs[0].record.method
    if get(settings, f"callbacks.{FIXED}") is None:
        return None
    weights = {"reward": 1.0}
    for name, weight in (get(settings, f"callbacks.{FIXED}.init_args.weights") or {}).items():
        weights[str(name)] = float(weight)
    return weights


def _values(weighted: Sequence[Weighted]) -> dict[str, set[float]]:
    """The values that each component's weight takes."""
    values: dict[str, set[float]] = {}
    for one in weighted:
        for component in one.weights:
            values.setdefault(component, set())
    for component, taken in values.items():
        taken.update(one.weight(component) for one in weighted)
    return values


def _sweep(component: str, others: Sequence[str], weighted: Sequence[Weighted]) -> Sweep:
    """Sort methods into rows of equal other weights, and into lines of equal other settings."""
    names: dict[str, str] = {}
    rows: dict[str, dict[str, Line]] = {}
    for one in sorted(weighted, key=lambda one: [one.weight(other) for other in others]):
        rest = _settings_without_weights(one.method)
        if rest not in names:
            names[rest] = _new_name(one.method, list(names.values()))
        title = ", ".join(f"λ of {other} = {one.weight(other):g}" for other in others)
        lines = rows.setdefault(title, {})
        line_of_settings = lines.setdefault(rest, Line(names[rest], []))
        line_of_settings.points.append(one)
    sweep = Sweep(component, {})
    for title, lines in rows.items():
        # A single choice of weights, such as all equal, is no part of a sweep.
        long = [one for one in lines.values() if len(one.points) >= FEWEST]
        for long_line in long:
            long_line.points.sort(key=lambda point: point.weight(component))
        if long:
            sweep.rows[title] = long
    return sweep


def _settings_without_weights(method: MethodRuns) -> str:
    settings = method.runs[0].record.method
    callbacks = {name: value for name, value in settings["callbacks"].items() if name != FIXED}
    return key_of({**settings, "callbacks": callbacks})


def _new_name(method: MethodRuns, names: Sequence[str]) -> str:
    """The method's estimator, numbered if other lines have the same estimator."""
    estimator = short_class(get(method.runs[0].record.method, "model.init_args.estimator")) or "fixed weights"
    same = sum(name.startswith(estimator) for name in names)
    return f"{estimator} #{same + 1}" if same else estimator


# ---------------------------------------------------------------------- drawing


def sweep_figures(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, Figure]]:
    """A figure per sweep: rows and lines as in `Sweep`, a column per reward or rate."""
    for sweep in sweeps:
        name = "sweep" if len(sweeps) == 1 else f"sweep_{re.sub(r'[^a-zA-Z0-9.=-]', '-', sweep.component)}"
        yield name, _figure(sweep)


def _figure(sweep: Sweep) -> Figure:
    tested = all(f"test/{REWARD}" in run.tests for method in sweep.methods for run in method.runs)
    tags = _tags(sweep)
    colors: dict[str, str] = {}
    for one in sweep.lines:
        if one.name not in colors:
            colors[one.name] = METHODS[len(colors) % len(METHODS)]
    size = (2.9 * len(tags) + 0.3, 1.9 * len(sweep.rows) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(sweep.rows), len(tags), squeeze=False, sharex=True, sharey="col")
    lowest = dict.fromkeys(tags, np.inf)
    for axes_of_row, (title, lines) in zip(grid, sweep.rows.items(), strict=True):
        axes_of_row[0].set_title(title, loc="left", fontweight="bold")
        for axes, tag in zip(axes_of_row, tags, strict=True):
            axes.set_ylabel("reward" if tag == REWARD else " of ".join(tag.split("/", 1)))
            for one in lines:
                least = _draw_line(axes, one, sweep.component, tag, tested, colors[one.name])
                lowest[tag] = min(lowest[tag], least)
    for axes, tag in zip(grid[-1], tags, strict=True):
        axes.set_xlabel(f"fixed weight of {sweep.component}")
        high = axes.get_ylim()[1]
        # Rates begin at 0, rewards only if they come near 0.
        if tag != REWARD or 0 <= lowest[tag] < 0.25 * high:
            axes.set_ylim(0, high)
    entries = [legend_line(color, name, marker="o", markersize=3) for name, color in colors.items()]
    source = "test" if tested else "end of training"
    entries.append(legend_line(GRAY, f"{source}, ± 1 std over seeds", marker="|", linestyle="", markersize=8))
    add_legend(figure, entries)
    return figure


def _tags(sweep: Sweep) -> list[str]:
    """The reward, and the rates and means that any method logged."""
    tags = [REWARD]
    for method in sweep.methods:
        for tag in method.tags:
            if tag.startswith(MEASURED) and tag not in tags:
                tags.append(tag)
    return tags


def _draw_line(axes: Axes, one: Line, component: str, tag: str, tested: bool, color: str) -> float:
    """Draw a tag's means and deviations over the weight; returns the least mean, infinite without values."""
    weights, means, deviations = [], [], []
    for point in one.points:
        values = [run.tests.get(f"test/{tag}") if tested else run.final.get(tag) for run in point.method.runs]
        found = statistic(values)
        if found is None:
            continue
        weights.append(point.weight(component))
        means.append(found.mean)
        deviations.append(found.std)  # NaN for one seed: no bar
    axes.errorbar(weights, means, deviations, color=color, marker="o", markersize=3, capsize=2, linewidth=1.2)
    return min(means, default=np.inf)


def main(folder: str) -> None:
    """Draw the sweeps of the runs in a folder."""
    for methods in collect([(None, Path(folder))]).values():
        with figure_style():
            for name, figure in sweep_figures(find_sweeps(methods)):
                print(save_figure(figure, Path(folder) / name))


if __name__ == "__main__":
    main(*sys.argv[1:])
