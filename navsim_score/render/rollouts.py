"""Candidates: plan, simulated drive and violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    ascending = sorted(rollouts, key=lambda rollout: rollout.score)
    for rollout in ascending:
        _draw_plan(axes, view, rollout, few)
        _draw_drive(axes, view, rollout, few)
    for rollout in ascending:
        _draw_marks(axes, view, rollout, few)
    _draw_numbers(axes, view, rollouts)


def _draw_plan(axes: Axes, view: View, rollout: Rollout, few: bool) -> None:
    start = view.origin
    plan = view.points(centers(torch.cat([start[None], in_scene(start, rollout.poses)])))
    look: dict[str, Any] = {"linewidth": 0.5, "markersize": 0, "alpha": 0.5}
    if few:
        look = {"linewidth": 0.8, "markersize": 3, "alpha": 0.9}
    color = style.SCORES(rollout.score)
    axes.plot(plan[:, 0], plan[:, 1], color=color, linestyle=":", marker=".", zorder=style.PLANS, **look)


def _draw_drive(axes: Axes, view: View, rollout: Rollout, few: bool) -> None:
    path = view.points(centers(rollout.states))
    look: dict[str, Any] = {"linewidth": 1.4, "alpha": 0.7}
    if rollout.score > 0:
        look = {"linewidth": 2.2, "alpha": 0.95}
    if few:
        look = {"linewidth": 2.4, "alpha": 0.95}
    color = style.SCORES(rollout.score)
    axes.plot(path[:, 0], path[:, 1], color=color, solid_capstyle="round", zorder=style.PLANS, **look)
    if few:
        _draw_outline(axes, view, corners(rollout.states[-1]), color, 0.9)


def draw_ego(axes: Axes, view: View) -> None:
    """Draw the ego's box at t = 0."""
    start = view.origin
    middle = torch.cat([centers(start), start[2:3]])
    box = view.points(corners(start))
    arrow = view.points(arrows(middle, start.new_tensor([LENGTH, WIDTH])))
    look: dict[str, Any] = {"edgecolor": ["white", "none"], "linewidth": 0.8, "zorder": style.EGO}
    draw_polygons(axes, [box, arrow], [style.INK, "white"], **look)


def _draw_numbers(axes: Axes, view: View, rollouts: Sequence[Rollout]) -> None:
    # A number that would cover a better candidate's is left out.
    wide = (view.high[0] - view.low[0]) * 0.025
    high = (view.high[1] - view.low[1]) * 0.014
    taken: list[tuple[float, float]] = []
    for rollout in sorted(rollouts, key=lambda rollout: -rollout.score):
        x, y = view.points(centers(rollout.states[-1]))
        if any(abs(x - left) < wide and abs(y - low) < high for left, low in taken):
            continue
        taken.append((x, y))
        look: dict[str, Any] = {"fontweight": "bold", "color": style.SCORES(rollout.score), "ha": "center"}
        _annotate_place(axes, str(rollout.number), (x, y), halo=2.2, **look)


def _draw_marks(axes: Axes, view: View, rollout: Rollout, few: bool) -> None:
    color = style.SCORES(rollout.score)
    together: dict[int, list[str]] = {}
    for name, step in rollout.marks.items():
        together.setdefault(step, []).append(name)
    for hit in rollout.hits:
        _draw_outline(axes, view, hit, style.RED_LIGHT, 1.2)
    for step, names in together.items():
        state = rollout.states[step]
        if few:
            _draw_outline(axes, view, corners(state), color, 0.9)
        center = view.points(centers(state))
        # Side by side, because one moment can violate several sub-scores.
        apart = 1.7 if few else 1.2
        for number, name in enumerate(names):
            x = center[0] + apart * (number - (len(names) - 1) / 2)
            size = 8 if few else 6
            look: dict[str, Any] = {"color": color, "markersize": size, "zorder": style.HITS}
            axes.plot(x, center[1], style.MARKS[name], markeredgecolor="white", markeredgewidth=0.7, **look)
        if few:
            beside = {"xytext": (6 + 4 * len(names), 0), "textcoords": "offset points"}
            text = f"{' '.join(names)} {step / 10:.1f} s"
            _annotate_place(axes, text, (float(center[0]), float(center[1])), halo=2.0, color=style.INK, **beside)


def _annotate_place(axes: Axes, text: str, place: tuple[float, float], halo: float, **look: Any) -> None:
    """Write a text at a place, with a white halo of some points, unless the place is out of view."""
    stroke = [withStroke(linewidth=halo, foreground="white")]
    usual: dict[str, Any] = {"fontsize": 7, "va": "center", "zorder": style.SIGNS, "annotation_clip": True}
    axes.annotate(text, place, path_effects=stroke, **usual, **look)


def _draw_outline(axes: Axes, view: View, box: Tensor, color: str | tuple[float, ...], width: float) -> None:
    draw_polygons(axes, [view.points(box)], edgecolor=color, linewidth=width, zorder=style.HITS)
