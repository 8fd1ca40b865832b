"""Learning curves: a row per method, columns of reward, rates, multipliers and effective weights (paper, figure 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.figures.style import (
    GRAY,
    component_colors,
    draw_seeds,
    legend,
    line,
    name_row,
    pages,
    say,
    updates_axis,
)
from lightning_cgrpo.reporting.runs import MethodRuns

COLUMNS = {
    "reward/": "reward",
    "rate/": "rate",
    "multiplier/": "multiplier λ",
    "effective_weight/": "effective weight",
}
SMALL_BOUND = 0.1
"""Where all thresholds are upper bounds up to this, rates beyond them are shown on a logarithmic axis."""

Limits = dict[str, tuple[float, float]]


def curves(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """The pages and their names."""
    methods = [method for method in methods if method.tags]
    families = [family for family in COLUMNS if any(_has(method, family) for method in methods)]
    colors = component_colors(methods)
    limits = _limits(methods, families)
    for suffix, page in pages(methods) if families else ():
        size = (2.9 * len(families) + 0.3, 1.75 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(families), squeeze=False, sharex=True, sharey="col")
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(families))
            for axes, family in zip(row, families, strict=True):
                axes.set_ylabel(COLUMNS[family])
                _panel(axes, method, family, colors)
        for column, family in enumerate(families):
            updates_axis(grid[-1, column], methods)
            if family == "rate/":
                limits[family] = _rate_axis(grid[:, column], methods, limits[family])
            grid[0, column].set_ylim(limits[family])
        shown = {_component(tag) for method in page for tag in method.tags if tag.startswith(tuple(families))}
        entries = [line(color, name) for name, color in colors.items() if name in shown]
        if any(_has(method, "threshold/") for method in page):
            entries.append(line(GRAY, "threshold", linestyle="--", linewidth=1.1))
        legend(figure, entries)
        yield f"curves{suffix}", figure


def _has(method: MethodRuns, family: str) -> bool:
    return any(tag.startswith(family) for tag in method.tags)


def _panel(axes: Axes, method: MethodRuns, family: str, colors: dict[str, str]) -> None:
    tags = [tag for tag in method.tags if tag.startswith(family)]
    for tag in tags:
        draw_seeds(axes, method.series(tag), colors.get(_component(tag), GRAY))
    if not tags:
        say(axes, "not logged")
    if family == "rate/":
        _thresholds(axes, method, colors)


def _component(tag: str) -> str:
    """What a tag is about, as in `component_colors`."""
    family, _, name = tag.partition("/")
    if family == "reward":
        return "reward" if name == "mean" else tag
    return name


def _thresholds(axes: Axes, method: MethodRuns, colors: dict[str, str]) -> None:
    """A dashed line for each enforced constraint; those at one bound share a line, dash by dash."""
    bounds: dict[float, list[str]] = {}
    for name, constraint in method.enforced.items():
        if constraint.bound is not None and f"rate/{name}" in method.tags:
            bounds.setdefault(constraint.bound, []).append(name)
    for bound, names in bounds.items():
        for n, name in enumerate(names):
            gap = 4 * (len(names) - 1) or 2
            axes.axhline(bound, color=colors[name], linewidth=1.1, linestyle=(4 * n, (4, gap)), zorder=3)


def _bounded(methods: Sequence[MethodRuns]) -> list[Constraint]:
    return [c for method in methods for c in method.constraints.values() if c.bound is not None]


def _rate_axis(
    column: Iterable[Axes], methods: Sequence[MethodRuns], limits: tuple[float, float]
) -> tuple[float, float]:
    """Linear up to the lowest threshold and logarithmic beyond, where thresholds are close to 0.

    Then it can be seen on one axis how rates fall from where they begin and how much of the threshold they use.
    """
    bounds = [c.at_most for c in _bounded(methods)]
    if not bounds or not all(bound is not None and 0 < bound <= SMALL_BOUND for bound in bounds):
        return limits
    lowest = min(bound for bound in bounds if bound is not None)
    for axes in column:
        axes.set_yscale("symlog", linthresh=lowest, linscale=1.0)
        decades = [10.0**k for k in range(-6, 1) if 10.0**k > lowest * 1.5]
        ticks = [0.0, lowest / 2, lowest, *decades]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    return -0.05 * lowest, 1.3 * limits[1]


def _limits(methods: Sequence[MethodRuns], families: Sequence[str]) -> Limits:
    """Limits per column, the same on all pages: from 0, and to 1 where values come near."""
    limits = {}
    for family in families:
        tags = [(method, tag) for method in methods for tag in method.tags if tag.startswith(family)]
        values = [value for method, tag in tags for series in method.series(tag) for value in series.values]
        if family == "rate/":
            values += [c.bound for c in _bounded(methods) if c.bound is not None]
        low, high = min(values), max(values)
        if low < 0 or high > 1.05:
            margin = 0.05 * ((high - low) or 1)
            low, high = low - margin, high + margin
        elif high > 0.5:
            low, high = -0.02, 1.04
        else:
            low, high = -0.02 * high, 1.08 * high or 1.0
        limits[family] = low, high
    return limits
