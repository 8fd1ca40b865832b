"""Curves over training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.cli.report.figures.style import (
    GRAY,
    add_legend,
    component_colors,
    draw_seeds,
    legend_line,
    name_row,
    seed_band,
    split_pages,
    updates_axis,
    write_note,
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

    def logged_by(self, method: MethodRuns) -> list[str]:
        return [tag for tag in method.tags if tag in self.tags]


def columns_of(methods: Sequence[MethodRuns]) -> list[Panels]:
    """Rewards; rates with lower and with upper bounds apart; each mean, which has a unit of its own; weights."""
    logged: dict[str, None] = {}  # all tags, in the order of the logs
    lower: set[str] = set()  # tags of constraints with lower bounds
    for method in methods:
        logged |= dict.fromkeys(method.tags)
        lower |= {bound.tag(name) for name, bound in method.bounds.items() if bound.lower}

    def family(start: str) -> tuple[str, ...]:
        return tuple(tag for tag in logged if tag.startswith(start))

    rates = family("rate/")
    columns = [
        Panels("reward", family("reward/")),
        Panels("rate, to be high", tuple(tag for tag in rates if tag in lower)),
        Panels("rate, to be low", tuple(tag for tag in rates if tag not in lower)),
    ]
    columns += [Panels(f"mean of {_component_name(tag)}", (tag,)) for tag in family("mean/")]
    columns += [
        Panels("multiplier λ", family("multiplier/")),
        Panels("effective weight", family("effective_weight/")),
    ]
    return [column for column in columns if column.tags]


def curves(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of learning curves: a row per method, the columns of `columns_of` (paper, figure 2)."""
    methods = [method for method in methods if method.tags]
    columns = columns_of(methods)
    colors = component_colors(methods)
    if not columns:
        return
    limits = [_axis_limits(methods, column) for column in columns]  # the same on all pages
    for suffix, page in split_pages(methods):
        size = (2.9 * len(columns) + 0.3, 1.75 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(columns), squeeze=False, sharex=True)
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(columns))
            for axes, column in zip(row, columns, strict=True):
                axes.set_ylabel(column.title)
                _draw_panel(axes, method, column, colors)
        for number, column in enumerate(columns):
            updates_axis(grid[-1, number], methods)
            _scale_rate_axis(grid[:, number], methods, column)
            for axes in grid[:, number]:
                axes.set_ylim(limits[number])
        _draw_legend(figure, page, columns, colors)
        yield f"curves{suffix}", figure


def _draw_legend(
    figure: Figure, methods: Sequence[MethodRuns], columns: Sequence[Panels], colors: dict[str, str]
) -> None:
    """Name the colors that a page shows, and the dashes of thresholds."""
    shown: set[str] = set()
    thresholds = False
    for method in methods:
        for column in columns:
            shown |= {_component_name(tag) for tag in column.logged_by(method)}
        thresholds = thresholds or any(tag.startswith("threshold/") for tag in method.tags)
    entries = [legend_line(color, name) for name, color in colors.items() if name in shown]
    if thresholds:
        entries.append(legend_line(GRAY, "threshold", linestyle="--", linewidth=1.1))
    add_legend(figure, entries)


def _draw_panel(axes: Axes, method: MethodRuns, column: Panels, colors: dict[str, str]) -> None:
    """Draw a method's curves of one column, and the thresholds of its constraints as dashes."""
    tags = column.logged_by(method)
    for tag in tags:
        draw_seeds(axes, method.series(tag), colors.get(_component_name(tag), GRAY))
    if not tags:
        write_note(axes, "not logged")
    names = [name for name, bound in method.enforced.items() if bound.tag(name) in column.tags]
    for number, name in enumerate(names):
        # Equal thresholds share a line: each dash is 4 long, starts where the dash before ends, and leaves gaps for
        # the others.
        gap = 4 * (len(names) - 1) or 2
        dashes = (4 * number, (4, gap))
        draw_seeds(axes, method.series(f"threshold/{name}"), colors[name], linewidth=1.1, linestyle=dashes, zorder=3)


def _component_name(tag: str) -> str:
    """The name of a tag's color: ``reward``, ``reward/<signal>`` or a constraint."""
    family, _, name = tag.partition("/")
    if family == "reward":
        return "reward" if name == "mean" else tag
    return name


def _rate_bounds(methods: Sequence[MethodRuns], column: Panels) -> list[Bound]:
    """The bounds on rates of a column."""
    bounds = []
    for method in methods:
        for name, bound in method.bounds.items():
            if bound.tag(name) in column.tags and bound.threshold is not None and not bound.of_mean:
                bounds.append(bound)
    return bounds


def _lowest_bound(methods: Sequence[MethodRuns], column: Panels) -> float | None:
    """The lowest of a column's upper bounds if all are small; else None."""
    targets = [bound.target for bound in _rate_bounds(methods, column) if not bound.lower]
    all_small = all(0 < target <= SMALL_BOUND for target in targets)
    return min(targets) if targets and all_small else None


def _scale_rate_axis(axes_of_column: Iterable[Axes], methods: Sequence[MethodRuns], column: Panels) -> None:
    """Make the axis of rates with small upper bounds linear up to the lowest bound, and logarithmic beyond."""
    lowest = _lowest_bound(methods, column)
    if lowest is None:
        return
    for axes in axes_of_column:
        axes.set_yscale("symlog", linthresh=lowest, linscale=1.0)
        decades = [10.0**k for k in range(-6, 1) if 10.0**k > lowest * 1.5]
        ticks = [0.0, lowest / 2, lowest, *decades]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def _axis_limits(methods: Sequence[MethodRuns], column: Panels) -> tuple[float, float]:
    """The ends of the vertical axis that all panels of a column share."""
    low, high = _value_range(methods, column)
    bounds = _rate_bounds(methods, column)
    if bounds:
        high = max(high, *(bound.threshold or 0.0 for bound in bounds))
        lowest = _lowest_bound(methods, column)
        if lowest is not None:
            return -0.05 * lowest, 1.4 * high
        if all(bound.lower for bound in bounds):
            # A rate that a run raised long ago, or that is only monitored, would pin the axis at 0.
            allowed = max(bound.target for bound in bounds)
            low = max(min([1 - ZOOM * allowed, *_late_minima(methods, column)]), 0.0)
            return low - 0.03 * (1 - low), 1 + 0.04 * (1 - low)
    if low < 0 or high > 1.05:
        margin = 0.05 * (high - low)
        return low - margin, high + margin
    if high > 0.5:
        return -0.02, 1.04
    return -0.02 * high, 1.08 * high or 1.0


def _value_range(methods: Sequence[MethodRuns], column: Panels) -> tuple[float, float]:
    """The lowest and the highest value of all bands, and 0. Short peaks are left out."""
    low = 0.0
    high = 0.0
    for method in methods:
        for tag in column.logged_by(method):
            seeds = method.series(tag)
            _, mean, std = seed_band(seeds)
            values = np.concatenate([series.values for series in seeds])
            # A band may leave [0, 1] although no value does.
            if values.min() < 0:
                low = min(low, float(np.nanmin(mean - std)))
            most = float(np.nanmax(mean + std))
            if values.max() > 1:
                usual = float(np.nanquantile(mean + std, 0.95))
                if usual > 0:
                    most = min(most, SPIKE * usual)
            else:
                most = min(most, 1.0)
            high = max(high, most)
    return low, high


def _late_minima(methods: Sequence[MethodRuns], column: Panels) -> list[float]:
    """The lowest values in the second half of training, for each method and enforced constraint of a column."""
    minima = []
    for method in methods:
        logged = column.logged_by(method)
        for name, bound in method.enforced.items():
            if bound.tag(name) in logged:
                minima.append(_late_minimum(method, bound.tag(name)))
    return minima


def _late_minimum(method: MethodRuns, tag: str) -> float:
    """The lowest mean over seeds in the second half of training."""
    steps, mean, _ = seed_band(method.series(tag))
    late = mean[steps >= steps[-1] / 2]
    return float(np.nanmin(late)) if np.isfinite(late).any() else 1.0
