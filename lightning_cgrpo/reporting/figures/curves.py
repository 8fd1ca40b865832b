"""Curves over training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.reporting.figures.style import (
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
from lightning_cgrpo.reporting.methods import MethodRuns, tag_of

COLUMNS = {
    "reward/": "reward",
    "rate/": "rate",
    "mean/": "mean",
    "multiplier/": "multiplier λ",
    "effective_weight/": "effective weight",
}
SMALL_BOUND = 0.1
"""Upper bounds up to this value get an axis that is logarithmic beyond them."""


def curves(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of learning curves: a row per method, a column per kind in `COLUMNS` (paper, figure 2)."""
    methods = [method for method in methods if method.tags]
    families = [family for family in COLUMNS if any(_has(method, family) for method in methods)]
    colors = component_colors(methods)
    # All pages have the same limits; means have units, so only methods that bound the same means share theirs.
    limits = {family: _limits(methods, family) for family in families}
    for suffix, page in pages(methods) if families else ():
        size = (2.9 * len(families) + 0.3, 1.75 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(families), squeeze=False, sharex=True)
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(families))
            for axes, family in zip(row, families, strict=True):
                axes.set_ylabel(COLUMNS[family])
                _panel(axes, method, family, colors)
        for column, family in enumerate(families):
            updates_axis(grid[-1, column], methods)
            if family == "rate/":
                _rate_axis(grid[:, column], methods)
            for axes, method in zip(grid[:, column], page, strict=True):
                alike = [other for other in methods if _means(other) == _means(method)]
                axes.set_ylim(_limits(alike, family) if family == "mean/" else limits[family])
        shown = {_component(tag) for method in page for tag in method.tags if tag.startswith(tuple(families))}
        entries = [line(color, name) for name, color in colors.items() if name in shown]
        if any(_has(method, "threshold/") for method in page):
            entries.append(line(GRAY, "threshold", linestyle="--", linewidth=1.1))
        legend(figure, entries)
        yield f"curves{suffix}", figure


def _has(method: MethodRuns, family: str) -> bool:
    return any(tag.startswith(family) for tag in method.tags)


def _means(method: MethodRuns) -> set[str]:
    return {tag for tag in method.tags if tag.startswith("mean/")}


def _panel(axes: Axes, method: MethodRuns, family: str, colors: dict[str, str]) -> None:
    tags = [tag for tag in method.tags if tag.startswith(family)]
    for tag in tags:
        draw_seeds(axes, method.series(tag), colors.get(_component(tag), GRAY))
    if not tags:
        say(axes, "not logged")
    if family in ("rate/", "mean/"):
        _thresholds(axes, method, family, colors)


def _component(tag: str) -> str:
    family, _, name = tag.partition("/")
    if family == "reward":
        return "reward" if name == "mean" else tag
    return name


def _thresholds(axes: Axes, method: MethodRuns, family: str, colors: dict[str, str]) -> None:
    names = [name for name, bound in method.enforced.items() if tag_of(name, bound) == family + name]
    for n, name in enumerate(names):
        # Dashes of equal thresholds take turns.
        dashes = (4 * n, (4, 4 * (len(names) - 1) or 2))
        draw_seeds(axes, method.series(f"threshold/{name}"), colors[name], linewidth=1.1, linestyle=dashes, zorder=3)


def _bounded(methods: Sequence[MethodRuns]) -> list[Bound]:
    bounds = [bound for method in methods for bound in method.bounds.values()]
    return [bound for bound in bounds if bound.threshold is not None and not bound.of_mean]


def _lowest_bound(methods: Sequence[MethodRuns]) -> float | None:
    bounds = _bounded(methods)
    small = [b.threshold for b in bounds if b.threshold is not None and not b.lower and 0 < b.threshold <= SMALL_BOUND]
    return min(small) if small and len(small) == len(bounds) else None


def _rate_axis(column: Iterable[Axes], methods: Sequence[MethodRuns]) -> None:
    lowest = _lowest_bound(methods)
    if lowest is None:
        return
    for axes in column:
        axes.set_yscale("symlog", linthresh=lowest, linscale=1.0)
        decades = [10.0**k for k in range(-6, 1) if 10.0**k > lowest * 1.5]
        ticks = [0.0, lowest / 2, lowest, *decades]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def _limits(methods: Sequence[MethodRuns], family: str) -> tuple[float, float]:
    low, high = 0.0, 0.0
    for seeds in (method.series(tag) for method in methods for tag in method.tags if tag.startswith(family)):
        _, mean, std = band(seeds)
        values = np.concatenate([series.values for series in seeds])
        # A band may leave [0, 1] although no value does.
        least, most = float((mean - std).min()), float((mean + std).max())
        low = min(low, least if values.min() < 0 else 0.0)
        high = max(high, most if values.max() > 1 else min(most, 1.0))
    if family == "rate/":
        high = max([high, *(bound.threshold for bound in _bounded(methods) if bound.threshold is not None)])
        if (lowest := _lowest_bound(methods)) is not None:
            return -0.05 * lowest, 1.4 * high
    if low < 0 or high > 1.05:
        margin = 0.05 * (high - low)
        return low - margin, high + margin
    return (-0.02, 1.04) if high > 0.5 else (-0.02 * high, 1.08 * high or 1.0)
