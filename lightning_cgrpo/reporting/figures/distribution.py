"""The distribution of effective weights over groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from lightning_cgrpo.output import WEIGHT_BIN, WEIGHT_BINS
from lightning_cgrpo.reporting.figures.style import GRAY, component_colors, legend, line, name_row, pages, say
from lightning_cgrpo.reporting.measures import statistic
from lightning_cgrpo.reporting.methods import MethodRuns
from lightning_cgrpo.reporting.series import Array

CENTERS: Array = np.arange(WEIGHT_BINS, dtype=np.float64) * WEIGHT_BIN
EDGES: Array = (np.arange(WEIGHT_BINS + 1, dtype=np.float64) - 0.5) * WEIGHT_BIN


def shares(method: MethodRuns, component: str) -> Array | None:
    """Shares of groups ``[WEIGHT_BINS]`` by effective weight, averaged over seeds; None if not logged."""
    rows = [run.distributions[component] for run in method.runs if component in run.distributions]
    padded = [np.pad(row, (0, WEIGHT_BINS - len(row))) for row in rows if row.any()]
    return np.mean(padded, axis=0) if padded else None


def distribution(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of distributions: a row per method, a column per component."""
    colors = component_colors(methods)
    logged = {c for method in methods for run in method.runs for c in run.distributions}
    components = [*(name for name in colors if name in logged), *sorted(logged - set(colors))]
    groups = {(m.label, c): row for m in methods for c in components if (row := shares(m, c)) is not None}
    methods = [method for method in methods if any((method.label, c) in groups for c in components)]
    right = max([1.0, *(float(CENTERS[np.flatnonzero(row > 1e-3)[-1]]) for row in groups.values())]) + WEIGHT_BIN
    for suffix, page in pages(methods) if methods else ():
        size = (2.9 * len(components) + 0.3, 1.65 * len(page) + 0.75)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(components), squeeze=False, sharex=True, sharey=True)
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(components))
            row[0].set_ylabel("share of groups")
            for axes, component in zip(row, components, strict=True):
                found = groups.get((method.label, component))
                if found is None:
                    say(axes, "varied in no group, or not logged")
                    continue
                axes.stairs(found, EDGES, fill=True, color=colors.get(component, GRAY), alpha=0.75)
                multiplier, mean = (
                    _final(method, f"{kind}/{component}") for kind in ("multiplier", "effective_weight")
                )
                if multiplier is not None:
                    axes.axvline(multiplier, color="black", linewidth=1, linestyle="--")
                # The table's mean, because the last bin cuts larger weights.
                text = "\n".join(f"{w} {v:.3g}" for w, v in (("λ", multiplier), ("mean", mean)) if v is not None)
                x = _gap([*CENTERS[found > 0.01], *([] if multiplier is None else [multiplier])], right)
                axes.text(x, 0.97, text, ha="center", va="top", color="#333333")
        for axes, component in zip(grid[-1], components, strict=True):
            axes.set_xlabel(f"effective weight of {component}")
        grid[0, 0].set_xlim(-1.5 * WEIGHT_BIN, right)
        grid[0, 0].set_ylim(0, 1.05)
        legend(figure, [line("black", "multiplier λ", linestyle="--", linewidth=1)])
        yield f"distribution{suffix}", figure


def _final(method: MethodRuns, tag: str) -> float | None:
    value = statistic([run.final.get(tag) for run in method.runs])
    return None if value is None else value.mean


def _gap(occupied: Sequence[float], right: float) -> float:
    """The middle of the widest free stretch, for a text."""
    edges = np.unique([0.0, *occupied, right])
    widest = int(np.argmax(np.diff(edges)))
    return float(edges[widest] + edges[widest + 1]) / 2
