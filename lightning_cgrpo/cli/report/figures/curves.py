"""Curves over training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.cli.report.figures.style import (
    GRAY,
    band,
    component_colors,
    draw_seeds,
    legend,
    line,
    name_row,
    pages,
    say,
    updates_axis,
)
from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.objective.bound import Bound

ZOOM = 4.0
"""The axis of rates shows this multiple of the allowed violations, and the rates of the second half of training."""
SMALL_BOUND = 0.1
"""Upper bounds up to this value get an axis that is logarithmic beyond them."""


SPIKE = 5.0
"""A short peak above this multiple of the 95th percentile leaves the axis, because it would flatten all curves."""


@dataclass(frozen=True)
class Panels:
    """A column of panels: tags that share an axis."""

    title: str
    tags: tuple[str, ...]

    def of(self, method: MethodRuns) -> list[str]:
        return [tag for tag in method.tags if tag in self.tags]


def columns_of(methods: Sequence[MethodRuns]) -> list[Panels]:
    """Rewards; rates with lower and with upper bounds apart; each mean, which has a unit of its own; weights."""
    tags = list(dict.fromkeys(tag for method in methods for tag in method.tags))
    lower = {b.tag(name) for method in methods for name, b in method.bounds.items() if b.lower}
    rates = [tag for tag in tags if tag.startswith("rate/")]
    columns = [
        Panels("reward", tuple(tag for tag in tags if tag.startswith("reward/"))),
        Panels("rate, to be high", tuple(tag for tag in rates if tag in lower)),
        Panels("rate, to be low", tuple(tag for tag in rates if tag not in lower)),
        *(Panels(f"mean of {_component(tag)}", (tag,)) for tag in tags if tag.startswith("mean/")),
        Panels("multiplier λ", tuple(tag for tag in tags if tag.startswith("multiplier/"))),
        Panels("effective weight", tuple(tag for tag in tags if tag.startswith("effective_weight/"))),
    ]
    return [column for column in columns if column.tags]


def curves(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of learning curves: a row per method, the columns of `columns_of` (paper, figure 2)."""
    methods = [method for method in methods if method.tags]
    columns = columns_of(methods)
    colors = component_colors(methods)
    limits = [_limits(methods, column) for column in columns]  # the same on all pages
    for suffix, page in pages(methods) if columns else ():
        size = (2.9 * len(columns) + 0.3, 1.75 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(columns), squeeze=False, sharex=True)
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(columns))
            for axes, column in zip(row, columns, strict=True):
                axes.set_ylabel(column.title)
                _panel(axes, method, column, colors)
        for number, column in enumerate(columns):
            updates_axis(grid[-1, number], methods)
            _rate_axis(grid[:, number], methods, column)
            for axes in grid[:, number]:
                axes.set_ylim(limits[number])
        shown = {_component(tag) for method in page for column in columns for tag in column.of(method)}
        entries = [line(color, name) for name, color in colors.items() if name in shown]
        if any(tag.startswith("threshold/") for method in page for tag in method.tags):
            entries.append(line(GRAY, "threshold", linestyle="--", linewidth=1.1))
        legend(figure, entries)
        yield f"curves{suffix}", figure


def _panel(axes: Axes, method: MethodRuns, column: Panels, colors: dict[str, str]) -> None:
    for tag in column.of(method):
        draw_seeds(axes, method.series(tag), colors.get(_component(tag), GRAY))
    if not column.of(method):
        say(axes, "not logged")
    names = [name for name, bound in method.enforced.items() if bound.tag(name) in column.tags]
    for n, name in enumerate(names):
        # Dashes of equal thresholds take turns.
        dashes = (4 * n, (4, 4 * (len(names) - 1) or 2))
        draw_seeds(axes, method.series(f"threshold/{name}"), colors[name], linewidth=1.1, linestyle=dashes, zorder=3)


def _component(tag: str) -> str:
    family, _, name = tag.partition("/")
    if family == "reward":
        return "reward" if name == "mean" else tag
    return name


def _bounded(methods: Sequence[MethodRuns], column: Panels) -> list[Bound]:
    bounds = [(bound.tag(name), bound) for method in methods for name, bound in method.bounds.items()]
    return [bound for tag, bound in bounds if tag in column.tags and bound.threshold is not None and not bound.of_mean]


def _lowest_bound(methods: Sequence[MethodRuns], column: Panels) -> float | None:
    targets = [bound.target for bound in _bounded(methods, column) if not bound.lower]
    return min(targets) if targets and all(0 < target <= SMALL_BOUND for target in targets) else None


def _rate_axis(axes_of_column: Iterable[Axes], methods: Sequence[MethodRuns], column: Panels) -> None:
    lowest = _lowest_bound(methods, column)
    if lowest is None:
        return
    for axes in axes_of_column:
        axes.set_yscale("symlog", linthresh=lowest, linscale=1.0)
        decades = [10.0**k for k in range(-6, 1) if 10.0**k > lowest * 1.5]
        ticks = [0.0, lowest / 2, lowest, *decades]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def _limits(methods: Sequence[MethodRuns], column: Panels) -> tuple[float, float]:
    low, high = 0.0, 0.0
    for seeds in (method.series(tag) for method in methods for tag in column.of(method)):
        _, mean, std = band(seeds)
        values = np.concatenate([series.values for series in seeds])
        # A band may leave [0, 1] although no value does.
        least, most = float(np.nanmin(mean - std)), float(np.nanmax(mean + std))
        if values.max() > 1 and (usual := float(np.nanquantile(mean + std, 0.95))) > 0:
            most = min(most, SPIKE * usual)
        low = min(low, least if values.min() < 0 else 0.0)
        high = max(high, most if values.max() > 1 else min(most, 1.0))
    bounds = _bounded(methods, column)
    if bounds:
        high = max(high, *(bound.threshold or 0.0 for bound in bounds))
        if (lowest := _lowest_bound(methods, column)) is not None:
            return -0.05 * lowest, 1.4 * high
        if all(bound.lower for bound in bounds):
            # A rate that a run raised long ago, or that is only monitored, would pin the axis at 0.
            allowed = max(bound.target for bound in bounds)
            enforced = [(method, bound.tag(name)) for method in methods for name, bound in method.enforced.items()]
            late = [_late(method, tag) for method, tag in enforced if tag in column.of(method)]
            low = max(min([1 - ZOOM * allowed, *late]), 0.0)
            return low - 0.03 * (1 - low), 1 + 0.04 * (1 - low)
    if low < 0 or high > 1.05:
        margin = 0.05 * (high - low)
        return low - margin, high + margin
    return (-0.02, 1.04) if high > 0.5 else (-0.02 * high, 1.08 * high or 1.0)


def _late(method: MethodRuns, tag: str) -> float:
    """The lowest mean over seeds in the second half of training."""
    steps, mean, _ = band(method.series(tag))
    late = mean[steps >= steps[-1] / 2]
    return float(np.nanmin(late)) if np.isfinite(late).any() else 1.0
