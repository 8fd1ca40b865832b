"""Final reward and rates over a fixed weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from lightning_cgrpo.reporting.figures.style import GRAY, METHODS, legend, line
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import statistic
from lightning_cgrpo.reporting.sweeps import find_sweeps


def sweep_figures(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """A figure per sweep: rows and lines as in `Sweep`, a column per reward or rate."""
    sweeps = find_sweeps(methods)
    for sweep in sweeps:
        used = sweep.methods
        tested = all("test/reward/mean" in run.evaluations for method in used for run in method.runs)
        tags = list(dict.fromkeys(tag for m in used for tag in m.tags if tag.startswith(("rate/", "mean/"))))
        tags = ["reward/mean", *tags]
        names = list(dict.fromkeys(name for lines in sweep.rows.values() for name in lines))
        colors = {name: METHODS[n % len(METHODS)] for n, name in enumerate(names)}
        size = (2.9 * len(tags) + 0.3, 1.9 * len(sweep.rows) + 0.8)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(sweep.rows), len(tags), squeeze=False, sharex=True, sharey="col")
        for row, (title, lines) in zip(grid, sweep.rows.items(), strict=True):
            row[0].set_title(title, loc="left", fontweight="bold")
            for axes, tag in zip(row, tags, strict=True):
                for name, found in lines.items():
                    x, mean, std = _line(found, tag, tested)
                    axes.errorbar(x, mean, std, color=colors[name], marker="o", markersize=3, capsize=2, linewidth=1.2)
        for column, tag in enumerate(tags):
            what = "reward" if tag == "reward/mean" else " of ".join(tag.split("/", 1))
            for axes in grid[:, column]:
                axes.set_ylabel(what)
            grid[-1, column].set_xlabel(f"fixed weight of {sweep.weight}")
            drawn = [found for lines in sweep.rows.values() for found in lines.values()]
            least = min((value for found in drawn for value in _line(found, tag, tested)[1]), default=0.0)
            high = grid[0, column].get_ylim()[1]
            # Rates begin at 0, rewards only if they come near 0.
            if tag != "reward/mean" or 0 <= least < 0.25 * high:
                grid[0, column].set_ylim(0, high)
        entries = [line(colors[name], name, marker="o", markersize=3) for name in names]
        source = "test" if tested else "end of training"
        legend(figure, [*entries, line(GRAY, f"{source}, ± 1 std over seeds", marker="|", linestyle="", markersize=8)])
        yield ("sweep" if len(sweeps) == 1 else f"sweep_{sweep.weight}"), figure


def _line(
    found: Sequence[tuple[float, MethodRuns]], tag: str, tested: bool
) -> tuple[list[float], list[float], list[float]]:

    def value(run: Run) -> float | None:
        return run.evaluations.get(f"test/{tag}") if tested else run.final.get(tag)

    known = [(x, s) for x, method in found if (s := statistic([value(run) for run in method.runs])) is not None]
    return [x for x, _ in known], [s.mean for _, s in known], [s.std if s.seeds > 1 else np.nan for _, s in known]
