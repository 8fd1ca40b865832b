"""The share of groups that teach anything about a component: those in which it varies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from lightning_cgrpo.reporting.figures.style import (
    METHODS,
    component_colors,
    draw_seeds,
    legend,
    line,
    pages,
    updates_axis,
)
from lightning_cgrpo.reporting.runs import MethodRuns

FAMILY = "groups/informative/"


def informative(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """The pages and their names: a panel per component, a line per method."""
    methods = [method for method in methods if any(tag.startswith(FAMILY) for tag in method.tags)]
    found = {tag.removeprefix(FAMILY) for method in methods for tag in method.tags if tag.startswith(FAMILY)}
    components = [name for name in component_colors(methods) if name in found]
    if not components:
        return
    for suffix, page in pages(methods):
        figure = Figure(figsize=(2.9 * len(components) + 0.3, 2.3 + 0.18 * len(page)), layout="constrained")
        [row] = figure.subplots(1, len(components), squeeze=False, sharex=True, sharey=True)
        for axes, component in zip(row, components, strict=True):
            for color, method in zip(METHODS, page, strict=False):
                draw_seeds(axes, method.series(FAMILY + component), color)
            axes.set_title(component)
            updates_axis(axes, methods)
        row[0].set_ylabel("share of informative groups")
        row[0].set_ylim(-0.02, 1.02)
        entries = [line(color, method.label) for color, method in zip(METHODS, page, strict=False)]
        legend(figure, entries, columns=2)
        yield f"informative{suffix}", figure
