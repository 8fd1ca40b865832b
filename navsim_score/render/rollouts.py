"""Candidates: plan, simulated drive and violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from torch import Tensor

from driving_scenes.vehicle import LENGTH, WIDTH, centers, corners
from navsim_score.render import style
from navsim_score.render.agents import arrows
from navsim_score.render.view import View, draw_polygons
from navsim_score.simulation.interpolation import in_scene

FEW = 6
"""Most candidates for texts at marks and car outlines."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """A scored candidate."""

    number: int
    tag: str | None
    poses: Tensor  # [P, 3] the plan, in the ego's frame
    states: Tensor  # [41, 11] simulated, in the scene's frame
    score: float  # EPDMS
    valid: bool  # False if poses or states are not finite
    marks: Mapping[str, int]  # first violated step by sub-score of `style.MARKED`
    hits: Sequence[Tensor]  # corners [4, 2] of touched boxes
    uncomfortable: bool  # whether HC, which has no place, is violated


def draw_rollouts(axes: Axes, view: View, rollouts: Sequence[Rollout]) -> None:
    """Draw simulated drives in score colors, over dotted plans."""
    few = len(rollouts) <= FEW
    # The best candidates are drawn last, over the others.
    for rollout in sorted(rollouts, key=lambda rollout: rollout.score):
        color = style.SCORES(rollout.score)
        start = view.origin
        plan = view.points(centers(torch.cat([start[None], in_scene(start, rollout.poses)])))
        axes.plot(
            plan[:, 0], plan[:, 1], color=color, linewidth=0.8 if few else 0.5, linestyle=":", marker=".",
            alpha=0.9 if few else 0.5, markersize=3 if few else 0, zorder=style.PLANS,
        )  # fmt: skip
        path = view.points(centers(rollout.states))
        axes.plot(
            path[:, 0], path[:, 1], color=color, linewidth=2.4 if few else 1.4 + 0.8 * (rollout.score > 0),
            alpha=0.95 if few or rollout.score > 0 else 0.7, solid_capstyle="round", zorder=style.PLANS,
        )  # fmt: skip
        if few:
            _outline(axes, view, corners(rollout.states[-1]), color, 0.9)
    for rollout in sorted(rollouts, key=lambda rollout: rollout.score):
        _draw_marks(axes, view, rollout, few)
    _draw_numbers(axes, view, rollouts)


def draw_ego(axes: Axes, view: View) -> None:
    """Draw the ego's box at t = 0."""
    start = view.origin
    middle = torch.cat([centers(start), start[2:3]])
    box, arrow = view.points(corners(start)), view.points(arrows(middle, start.new_tensor([LENGTH, WIDTH])))
    fill, edge = [style.INK, "white"], ["white", "none"]
    draw_polygons(axes, [box, arrow], fill, edgecolor=edge, linewidth=0.8, zorder=style.EGO)


def _draw_numbers(axes: Axes, view: View, rollouts: Sequence[Rollout]) -> None:
    wide, high = (view.high[0] - view.low[0]) * 0.025, (view.high[1] - view.low[1]) * 0.014
    taken: list[tuple[float, float]] = []
    for rollout in sorted(rollouts, key=lambda rollout: -rollout.score):
        x, y = view.points(centers(rollout.states[-1]))
        if any(abs(x - left) < wide and abs(y - low) < high for left, low in taken):
            continue
        taken.append((x, y))
        axes.annotate(
            str(rollout.number), (x, y), fontsize=7, fontweight="bold", color=style.SCORES(rollout.score), ha="center",
            va="center", path_effects=[withStroke(linewidth=2.2, foreground="white")], zorder=style.SIGNS,
            annotation_clip=True,
        )  # fmt: skip


def _draw_marks(axes: Axes, view: View, rollout: Rollout, few: bool) -> None:
    color = style.SCORES(rollout.score)
    together: dict[int, list[str]] = {}
    for name, step in rollout.marks.items():
        together.setdefault(step, []).append(name)
    for hit in rollout.hits:
        _outline(axes, view, hit, style.RED_LIGHT, 1.2)
    for step, names in together.items():
        state = rollout.states[step]
        if few:
            _outline(axes, view, corners(state), color, 0.9)
        center = view.points(centers(state))
        # Side by side, because one moment can violate several sub-scores.
        apart = 1.7 if few else 1.2
        for number, name in enumerate(names):
            axes.plot(
                center[0] + apart * (number - (len(names) - 1) / 2), center[1], style.MARKS[name], color=color,
                markeredgecolor="white", markeredgewidth=0.7, markersize=8 if few else 6, zorder=style.HITS,
            )  # fmt: skip
        if few:
            axes.annotate(
                f"{' '.join(names)} {step / 10:.1f} s", tuple(center), xytext=(6 + 4 * len(names), 0),
                textcoords="offset points", va="center", fontsize=7, color=style.INK, zorder=style.SIGNS,
                path_effects=[withStroke(linewidth=2, foreground="white")], annotation_clip=True,
            )  # fmt: skip


def _outline(axes: Axes, view: View, box: Tensor, color: str | tuple[float, ...], width: float) -> None:
    draw_polygons(axes, [view.points(box)], edgecolor=color, linewidth=width, zorder=style.HITS)
