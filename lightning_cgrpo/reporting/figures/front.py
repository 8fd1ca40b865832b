"""The front of reward and compliance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from lightning_cgrpo.reporting.figures.style import METHODS, legend, line
from lightning_cgrpo.reporting.methods import MethodRuns
from lightning_cgrpo.reporting.runs import Run


def front(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Final reward over compliance, a point per run: the upper right corner is best."""
    points = {method.label: [point for run in method.runs if (point := _point(run))] for method in methods}
    points = {label: drawn for label, drawn in points.items() if drawn}
    if not points or len({method.label for method in methods}) * max(map(len, points.values())) < 2:
        return
    figure = Figure(figsize=(7.4, 3.2 + 0.12 * len(points)), layout="constrained")
    axes = figure.subplots()
    entries = []
    for number, (label, drawn) in enumerate(points.items()):
        marker, color = "osD^v<>PX*"[number // len(METHODS) % 10], METHODS[number % len(METHODS)]
        compliances, rewards = np.transpose(drawn)
        axes.scatter(compliances, rewards, color=color, marker=marker, s=26, alpha=0.8, linewidths=0)
        entries.append(line(color, label, marker=marker, linestyle="", markersize=5))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("compliance: share of the second half of training, for the constraint that is met least")
    axes.set_ylabel("reward at the end of training")
    legend(figure, entries, columns=3)
    yield "front", figure


def _point(run: Run) -> tuple[float, float] | None:
    """Compliance and final reward; None if a constraint, or the reward, was not logged."""
    reward, shares = run.final.get("reward/mean"), []
    for name, bound in run.bounds(["constrain"]).items():
        if (rate := run.series.get(bound.tag(name))) is None:
            return None
        late = rate.between(run.updates / 2, np.inf).values.tolist()
        shares.append(float(np.mean([bound.met(value) for value in late])))
    return None if reward is None or not shares else (min(shares), reward)
