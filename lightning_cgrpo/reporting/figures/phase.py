"""Paths of runs in the plane of violation and multiplier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.figures.style import name_row, pages, say
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.series import Array
from lightning_cgrpo.reporting.summary import violation


def paths(run: Run, name: str, constraint: Constraint) -> tuple[Array, Array, Array] | None:
    """Steps, violations (negative if met) and multipliers ``[n]`` of a constraint; None if not logged."""
    rate, multiplier = run.series.get(constraint.tag(name)), run.series.get(f"multiplier/{name}")
    if rate is None or multiplier is None or constraint.bound.threshold is None:
        return None
    steps, rows, columns = np.intersect1d(rate.steps, multiplier.steps, return_indices=True)
    return steps, violation(rate.values[rows], constraint), multiplier.values[columns]


def phase(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of paths: a row per method, a column per enforced constraint."""
    methods = [m for m in methods if any(_moving(m, name) for name in m.enforced)]
    names = list(dict.fromkeys(name for method in methods for name in method.enforced))
    if not names:
        return
    last = max(float(s.steps[-1]) for m in methods for r in m.runs for s in r.series.values() if len(s))
    time, colors = Normalize(0, last), "viridis"
    for suffix, page in pages(methods):
        size = (3.1 * len(names) + 0.9, 1.8 * len(page) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(page), len(names), squeeze=False, sharex="col", sharey="col")
        for row, method in zip(grid, page, strict=True):
            name_row(row[0], method.label, len(names))
            for axes, name in zip(row, names, strict=True):
                if why := _why_empty(method, name):
                    say(axes, why)
                    continue
                axes.axvline(0, color="black", linewidth=0.9, linestyle="--", zorder=1)
                for steps, x, y in _found([method], name):
                    points = np.stack([x, y], axis=1)
                    segments = np.stack([points[:-1], points[1:]], axis=1)
                    lines = LineCollection(list(segments), cmap=colors, norm=time, linewidths=0.9, alpha=0.8)
                    lines.set_array(steps[1:])
                    axes.add_collection(lines)
                    axes.plot(x[-1], y[-1], "o", color="black", markersize=3.5, zorder=4)
        for column, name in enumerate(names):
            _scale(grid[:, column], [m for m in methods if name in m.enforced], name)
            grid[-1, column].set_xlabel(f"violation of {name}")
            for axes in grid[:, column]:
                axes.set_ylabel(f"λ of {name}")
        figure.colorbar(
            ScalarMappable(time, colors),
            ax=grid,
            label="update (● the end)",
            aspect=20 * len(page),
            pad=0.02,
            format=EngFormatter(sep=""),
        )
        yield f"phase{suffix}", figure


def _moving(method: MethodRuns, name: str) -> bool:
    return any(np.ptp(s.values) > 0 for s in method.series(f"multiplier/{name}") if len(s))


def _found(methods: Sequence[MethodRuns], name: str) -> list[tuple[Array, Array, Array]]:
    known = [paths(run, name, method.constraints[name]) for method in methods for run in method.runs]
    return [path for path in known if path is not None and len(path[0]) > 1]


def _why_empty(method: MethodRuns, name: str) -> str:
    if name not in method.enforced:
        return "monitored only" if name in method.constraints else "no such constraint"
    if not _moving(method, name):
        return "no multiplier that moves"
    return "" if _found([method], name) else "rate not logged"


def _scale(column: Iterable[Axes], methods: Sequence[MethodRuns], name: str) -> None:
    found = _found(methods, name)
    if not found:
        return
    x = np.concatenate([p[1] for p in found])
    y = np.concatenate([p[2] for p in found])
    allowed = min(m.constraints[name].bound.target for m in methods)
    first = next(iter(column))
    if 0 < allowed <= 0.1 and x.max() > 3 * allowed:
        first.set_xscale("symlog", linthresh=allowed, linscale=1.0)
        # A decade close to the threshold would write its number over the threshold's.
        decades = [d for k in range(-6, 1) if 3 * allowed < (d := 10.0**k) <= x.max() * 1.3]
        ticks = [-allowed, 0.0, allowed, *decades]
        first.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        first.set_xlim(min(x.min(), -allowed) * 1.15, x.max() * 1.3)
        first.minorticks_off()
    else:
        margin = 0.05 * (np.ptp(x) or 1)
        first.set_xlim(x.min() - margin, x.max() + margin)
        first.xaxis.set_major_locator(MaxNLocator(5))
    margin = 0.06 * (np.ptp(y) or 1)
    first.set_ylim(y.min() - margin, y.max() + margin)
