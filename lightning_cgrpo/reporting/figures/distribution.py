"""The distribution of effective weights over groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from lightning_cgrpo.reporting.figures.style import GRAY, component_colors, legend, line, name_row, pages, say
from lightning_cgrpo.reporting.histogram import CENTERS, EDGES, WIDTH
from lightning_cgrpo.reporting.runs import MethodRuns
from lightning_cgrpo.reporting.series import Array


def shares(method: MethodRuns, component: str) -> Array | None:
    """Shares of groups ``[BINS]`` by effective weight, averaged over seeds; None if not logged."""
    found = [np.array(run.distributions[component]) for run in method.runs if component in run.distributions]
    found = [part for part in found if part.any()]
    return np.mean(found, axis=0) if found else None


def distribution(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of distributions: a row per method, a column per component."""
    methods = [m for m in methods if any(any(found) for run in m.runs for found in run.distributions.values())]
    components = list(dict.fromkeys(c for method in methods for run in method.runs for c in run.distributions))
    if not components:
        return
    colors = component_colors(methods)
    order = list(colors)
    components.sort(key=lambda name: order.index(name) if name in order else len(order))
    found = [s for m in methods for c in components if (s := shares(m, c)) is not None]
    right = max(float(CENTERS[np.flatnonzero(s > 1e-3)[-1]]) for s in found)
    right = max(right, 1.0) + WIDTH
    for suffix, page in pages(methods):
        size = (2.9 * len(components) + 0.3, 1.65 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(components), squeeze=False, sharex=True, sharey=True)
        for row, method in zip(grid, page, strict=True):
            for column, (axes, component) in enumerate(zip(row, components, strict=True)):
                groups = shares(method, component)
                if column == 0:
                    name_row(axes, method.label, len(components))
                    axes.set_ylabel("share of groups")
                if groups is None:
                    say(axes, _why_empty(method, component))
                    continue
                color = colors.get(component, GRAY)
                axes.stairs(groups, EDGES, fill=True, color=color, alpha=0.75)
                multiplier = _final(method, f"multiplier/{component}")
                if multiplier is not None:
                    axes.axvline(multiplier, color="black", linewidth=1, linestyle="--")
                # The table's mean, because the last bin cuts larger weights.
                told = (("λ", multiplier), ("mean", _final(method, f"effective_weight/{component}")))
                text = "\n".join(f"{word} {value:.3g}" for word, value in told if value is not None)
                x = _gap([*CENTERS[groups > 0.01], *([] if multiplier is None else [multiplier])], right)
                axes.text(x, 0.97, text, ha="center", va="top", color="#333333")
        for column, component in enumerate(components):
            grid[-1, column].set_xlabel(f"effective weight of {component}")
        grid[0, 0].set_xlim(-1.5 * WIDTH, right)
        if right > EDGES[-2]:
            # All larger weights are in the last bin.
            ticks = [0.0, 0.5, 1.0, 1.5, float(CENTERS[-1])]
            grid[0, 0].set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:g}"])
        grid[0, 0].set_ylim(0, 1.05)
        legend(figure, [line("black", "multiplier λ", linestyle="--", linewidth=1)])
        yield f"distribution{suffix}", figure


def _final(method: MethodRuns, tag: str) -> float | None:
    values = [run.final[tag] for run in method.runs if tag in run.final]
    return float(np.mean(values)) if values else None


def _gap(occupied: Sequence[float], right: float) -> float:
    edges = np.unique([0.0, *occupied, right])
    widest = int(np.argmax(np.diff(edges)))
    return float(edges[widest] + edges[widest + 1]) / 2


def _why_empty(method: MethodRuns, component: str) -> str:
    if any(component in run.distributions for run in method.runs):
        return "varied in no group"
    return "monitored only" if component in method.constraints and component not in method.enforced else "not logged"
