"""Sweeps: final reward and rates of methods that differ only in fixed weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from lightning_cgrpo.cli.configuration import get, short_class
from lightning_cgrpo.cli.method import key_of
from lightning_cgrpo.cli.report.figures.style import GRAY, METHODS, legend, line
from lightning_cgrpo.cli.report.measures import statistic
from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.results import MEASURED, REWARD

FIXED = "FixedWeights"
FEWEST = 3
"""Fewest values of a weight in a sweep."""

Point = tuple[float, MethodRuns]


class Sweep(NamedTuple):
    """A sweep over one component's weight.

    Args:
        rows: points (weight, method) with rising weights, by other weights (a title) and estimator (a line).
    """

    weight: str
    rows: dict[str, dict[str, list[Point]]]

    @property
    def methods(self) -> list[MethodRuns]:
        return [method for lines in self.rows.values() for points in lines.values() for _, method in points]


def find_sweeps(methods: Sequence[MethodRuns]) -> list[Sweep]:
    """A sweep over each weight that takes the most different values, at least `FEWEST`."""
    weighted = [(weights, method) for method in methods if (weights := weights_of(method)) is not None]
    names = list(dict.fromkeys(name for weights, _ in weighted for name in weights))
    values = {name: {weights.get(name, 0.0) for weights, _ in weighted} for name in names}
    most = max(map(len, values.values()), default=0)
    swept = [name for name in names if len(values[name]) == most >= FEWEST]
    sweeps = [_sweep(name, [o for o in names if o != name and len(values[o]) > 1], weighted) for name in swept]
    return [sweep for sweep in sweeps if sweep.rows]


def weights_of(method: MethodRuns) -> dict[str, float] | None:
    """A method's fixed weights by component; None without `FixedWeights`."""
    settings = method.runs[0].summary["method"]
    if get(settings, f"callbacks.{FIXED}") is None:
        return None
    given = get(settings, f"callbacks.{FIXED}.init_args.weights") or {}
    return {"reward": 1.0, **{str(name): float(weight) for name, weight in given.items()}}


def _sweep(name: str, others: Sequence[str], weighted: Sequence[tuple[dict[str, float], MethodRuns]]) -> Sweep:
    lines: dict[str, str] = {}
    rows: dict[str, dict[str, list[Point]]] = {}
    for weights, method in sorted(weighted, key=lambda one: [one[0].get(other, 0.0) for other in others]):
        settings = method.runs[0].summary["method"]
        rest = key_of({**settings, "callbacks": {k: v for k, v in settings["callbacks"].items() if k != FIXED}})
        estimator = short_class(get(settings, "model.init_args.estimator")) or "fixed weights"
        same = sum(label.startswith(estimator) for label in lines.values())
        label = lines.setdefault(rest, f"{estimator} #{same + 1}" if same else estimator)
        title = ", ".join(f"λ of {other} = {weights.get(other, 0.0):g}" for other in others)
        rows.setdefault(title, {}).setdefault(label, []).append((weights.get(name, 0.0), method))
    # A single choice of weights, such as all equal, is no part of a sweep.
    long = {t: {label: p for label, p in row.items() if len(p) >= FEWEST} for t, row in rows.items()}
    ordered = {t: {label: sorted(p, key=itemgetter(0)) for label, p in row.items()} for t, row in long.items() if row}
    return Sweep(name, ordered)


def sweep_figures(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, Figure]]:
    """A figure per sweep: rows and lines as in `Sweep`, a column per reward or rate."""
    for sweep in sweeps:
        runs = [run for method in sweep.methods for run in method.runs]
        tested = all(f"test/{REWARD}" in run.tests for run in runs)
        tags = [REWARD, *dict.fromkeys(t for m in sweep.methods for t in m.tags if t.startswith(MEASURED))]
        names = list(dict.fromkeys(name for lines in sweep.rows.values() for name in lines))
        colors = {name: METHODS[n % len(METHODS)] for n, name in enumerate(names)}
        size = (2.9 * len(tags) + 0.3, 1.9 * len(sweep.rows) + 0.8)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(sweep.rows), len(tags), squeeze=False, sharex=True, sharey="col")
        for row, (title, lines) in zip(grid, sweep.rows.items(), strict=True):
            row[0].set_title(title, loc="left", fontweight="bold")
            for axes, tag in zip(row, tags, strict=True):
                for name, points in lines.items():
                    x, mean, std = _line(points, tag, tested)
                    axes.errorbar(x, mean, std, color=colors[name], marker="o", markersize=3, capsize=2, linewidth=1.2)
        for column, tag in zip(grid.T, tags, strict=True):
            for axes in column:
                axes.set_ylabel("reward" if tag == REWARD else " of ".join(tag.split("/", 1)))
            column[-1].set_xlabel(f"fixed weight of {sweep.weight}")
            drawn = [points for lines in sweep.rows.values() for points in lines.values()]
            least = min((value for points in drawn for value in _line(points, tag, tested)[1]), default=0.0)
            high = column[0].get_ylim()[1]
            # Rates begin at 0, rewards only if they come near 0.
            if tag != REWARD or 0 <= least < 0.25 * high:
                column[0].set_ylim(0, high)
        entries = [line(colors[name], name, marker="o", markersize=3) for name in names]
        source = "test" if tested else "end of training"
        legend(figure, [*entries, line(GRAY, f"{source}, ± 1 std over seeds", marker="|", linestyle="", markersize=8)])
        yield ("sweep" if len(sweeps) == 1 else f"sweep_{re.sub(r'[^a-zA-Z0-9.=-]', '-', sweep.weight)}"), figure


def _line(points: Sequence[Point], tag: str, tested: bool) -> tuple[list[float], list[float], list[float]]:
    def values(method: MethodRuns) -> list[float | None]:
        return [run.tests.get(f"test/{tag}") if tested else run.final.get(tag) for run in method.runs]

    drawn = [(x, found) for x, method in points if (found := statistic(values(method))) is not None]
    return [x for x, _ in drawn], [s.mean for _, s in drawn], [s.std if s.seeds > 1 else np.nan for _, s in drawn]
