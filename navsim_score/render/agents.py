"""Agents at t = 0, and their logged motion."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

from driving_scenes.scene import AGENT_TYPES, Scene
from navsim_score.geometry.boxes import box_corners
from navsim_score.render import style
from navsim_score.render.view import View, draw_polygons

GHOSTS = (1.0, 2.0, 3.0, 4.0)
"""Seconds of faint later boxes."""
MOVED = 0.5
"""Least meters of motion for a path."""


def arrows(poses: Tensor, sizes: Tensor) -> Tensor:
    """Triangles ``[..., 3, 2]`` that point to the fronts of boxes."""
    tip = box_corners(poses, sizes)[..., [0, 3], :].mean(-2, keepdim=True)
    base = box_corners(poses, sizes * sizes.new_tensor([0.0, 0.6]))[..., [0, 3], :]
    return torch.cat([tip + (base.mean(-2, keepdim=True) - tip) * 0.25, base], -2)


def draw_agents(axes: Axes, scene: Scene, view: View) -> None:
    """Draw agents where first seen from t = 0 on, and later poses of moving agents."""
    agents = scene.agents
    for row in range(len(agents.tokens)):
        shown = agents.seen[row] & (agents.times >= 0)
        if not shown.any():
            continue
        times = agents.times[shown]
        poses = agents.states[row, shown, :3]
        size = agents.sizes[row, :2]
        path = view.points(poses[:, :2])
        if not view.sees(path):
            continue
        color = style.AGENTS[AGENT_TYPES[int(agents.types[row])]]
        moves = float((poses[:, :2] - poses[0, :2]).norm(dim=1).max()) > MOVED
        if moves:
            later = torch.isin(times, torch.tensor(GHOSTS, dtype=times.dtype)) & (times > times[0])
            ghosts = [view.points(corners) for corners in box_corners(poses[later], size)]
            draw_polygons(axes, ghosts, edgecolor=color, alpha=0.45, linewidth=0.6, zorder=style.MOTION)
            axes.add_collection(LineCollection([path], color=color, alpha=0.55, linewidth=0.9, zorder=style.MOTION))
        # Agents that appear later are drawn unfilled where they appear.
        is_here = float(times[0]) == 0
        box = view.points(box_corners(poses[0], size))
        fill, edge, line = ("none", color, ":")
        if is_here:
            fill, edge, line = (color, "white", "-")
        draw_polygons(axes, [box], fill, edgecolor=edge, linewidth=0.6, linestyle=line, zorder=style.BOXES)
        if moves and is_here:
            arrow = view.points(arrows(poses[0], size))
            draw_polygons(axes, [arrow], "white", alpha=0.8, linewidth=0, zorder=style.BOXES)
