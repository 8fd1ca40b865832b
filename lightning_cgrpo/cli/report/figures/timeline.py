"""When each threshold was met, and the front of reward and compliance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_cgrpo.cli.report.figures.style import (
    GREEN,
    METHODS,
    MISSED,
    add_legend,
    legend_line,
    name_row,
    seed_band,
    split_pages,
    updates_axis,
)
from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.run.runs import Run
from lightning_cgrpo.run.series import Series

MARKERS = "osD^v<>PX*"
SHADES = 4
"""Shades between all seeds missing and all seeds meeting a threshold."""


def timeline(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Pages of strips: for each method and enforced constraint, the share of seeds that meet the final threshold."""
    methods = [method for method in methods if any(_met_series(run) for run in method.runs)]
    if not methods:
        return
    for suffix, page in split_pages(methods):
        heights = [len(method.enforced) for method in page]
        figure = Figure(figsize=(7.4, 0.28 * sum(heights) + 0.45 * len(page) + 0.7), layout="constrained")
        grid = figure.subplots(len(page), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axes, method in zip(grid, page, strict=True):
            name_row(axes, method.label, 2)
            axes.grid(visible=False)
            # A row per enforced constraint, the first at the top.
            names = list(method.enforced)
            axes.set_yticks(range(len(names)), [f"{name} {method.enforced[name]}" for name in names])
            axes.set_ylim(len(names) - 0.5, -0.5)
            # Each update has the width of the narrowest bin of the runs.
            strips = [_met_series(run) for run in method.runs]
            width = min((run.width for run in method.runs), default=1.0)
            for row, name in enumerate(names):
                seeds = [strip[name] for strip in strips if name in strip]
                if seeds:
                    _draw_strip(axes, row, seeds, width)
        updates_axis(grid[-1], page)
        entries = [legend_line(GREEN, "met", linewidth=5), legend_line(MISSED, "missed", linewidth=5)]
        add_legend(figure, entries)
        yield f"timeline{suffix}", figure


def _draw_strip(axes: Axes, row: int, seeds: Sequence[Series], width: float) -> None:
    """Draw both colors, each as strong as its share of the seeds."""
    steps, share_met, _ = seed_band(seeds)
    known = ~np.isnan(share_met)
    steps = steps[known]
    share_met = share_met[known]
    for color, share in ((GREEN, share_met), (MISSED, 1 - share_met)):
        shades = np.round(share * SHADES) / SHADES
        for shade in np.unique(shades[shades > 0]):
            spans = [(step - width / 2, width) for step in steps[shades == shade]]
            axes.broken_barh(spans, (row - 0.4, 0.8), color=color, alpha=float(shade), linewidth=0)


def front(methods: Sequence[MethodRuns]) -> Iterator[tuple[str, Figure]]:
    """Final reward over compliance, a point per run: the upper right corner is best."""
    points: dict[str, list[tuple[float, float]]] = {}
    for method in methods:
        for run in method.runs:
            point = _compliance_and_reward(run)
            if point is not None:
                points.setdefault(method.label, []).append(point)
    # A single point says nothing about a front.
    if not points or (len(methods) == 1 and len(points[methods[0].label]) == 1):
        return
    figure = Figure(figsize=(7.4, 3.2 + 0.12 * len(points)), layout="constrained")
    axes = figure.subplots()
    entries = []
    for number, (label, points_of_method) in enumerate(points.items()):
        # After the last color, the first color comes again with the next marker.
        color = METHODS[number % len(METHODS)]
        marker = MARKERS[number // len(METHODS) % len(MARKERS)]
        compliances, rewards = np.transpose(points_of_method)
        axes.scatter(compliances, rewards, color=color, marker=marker, s=26, alpha=0.8, linewidths=0)
        entries.append(legend_line(color, label, marker=marker, linestyle="", markersize=5))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("compliance: share of the second half of training, for the constraint that is met least")
    axes.set_ylabel("reward at the end of training")
    add_legend(figure, entries, columns=3)
    yield "front", figure


def _met_series(run: Run) -> dict[str, Series]:
    """By enforced constraint: 1 where the logged rate meets the final threshold, and 0 elsewhere."""
    strips = {}
    for name, bound in run.enforced.items():
        rate = run.series.get(bound.tag(name))
        if rate is not None:
            met = [bound.met(value) for value in rate.values.tolist()]
            strips[name] = Series(rate.steps, np.array(met, np.float64))
    return strips


def _compliance_and_reward(run: Run) -> tuple[float, float] | None:
    """Compliance and final reward; None if a constraint, or the reward, was not logged."""
    reward = run.final.get("reward/mean")
    strips = _met_series(run)
    if reward is None or not strips or strips.keys() != run.enforced.keys():
        return None
    # Compliance is the share of the second half of training in which the constraint that is met least is met.
    compliance = min(strip.between(run.updates / 2, np.inf).mean() for strip in strips.values())
    return compliance, reward
