"""Pictures of scenes from above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from driving_scenes.scene import Scene
from driving_scenes.vehicle import centers
from navsim_score.render import style
from navsim_score.render.agents import draw_agents
from navsim_score.render.legend import draw_key, draw_list
from navsim_score.render.roads import draw_roads
from navsim_score.render.rollouts import Rollout, draw_ego, draw_rollouts
from navsim_score.render.view import View
from navsim_score.scorer import Scores

HEIGHT = 8.5  # inches, as the widths
LIST_WIDTH = 4.9
IMAGES_WIDTH = 4.0
NO_IMAGES: Mapping[str, NDArray[np.uint8]] = MappingProxyType({})


def draw(
    scene: Scene,
    poses: Tensor,
    scores: Scores,
    *,
    tags: Sequence[str | None] | None = None,
    centerline: Tensor | None = None,
    hits: Sequence[Tensor] | None = None,
    images: Mapping[str, NDArray[np.uint8]] = NO_IMAGES,
) -> Figure:
    """Draw a scene from above, the ego looking up, with R candidates in the colors of their scores.

    Agents are filled at t = 0; moving agents are outlined 1, 2, 3 and 4 s later. Marks show the ego at the first
    violation of a sub-score.

    Args:
        poses: ``[R, P, 3]`` plans, in the ego's frame.
        scores: of the plans.
        tags: of the plans, by default numbers.
        centerline: ``[C, 2]`` for progress.
        hits: for each plan, ``[n, 4, 2]`` boxes touched at its first at-fault collision.
        images: ``[h, w, 3]`` of cameras by title, drawn at the side.
    """
    rollouts = _make_rollouts(poses, scores, tags or [None] * len(poses), hits)
    driven = [rollout for rollout in rollouts if rollout.valid]
    # The view has the ego and all drives; images, the view and the list are columns.
    start = scene.ego.poses[-1]
    places = [start[None, :2]]
    places += [centers(rollout.states) for rollout in driven]
    view = View.around(start, torch.cat(places))
    width = HEIGHT * (view.high[0] - view.low[0]) / (view.high[1] - view.low[1])
    columns = [width, LIST_WIDTH]
    if images:
        columns.insert(0, IMAGES_WIDTH)
    figure = Figure(figsize=(sum(columns), HEIGHT), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(1, len(columns), width_ratios=columns)
    axes = figure.add_subplot(grid[0, -2])
    beside = figure.add_subplot(grid[0, -1])
    if images:
        cells = grid[0, 0].subgridspec(max(len(images), 3), 1)
        for row, (title, image) in enumerate(images.items()):
            camera = figure.add_subplot(cells[row, 0])
            camera.set_axis_off()
            camera.imshow(image, interpolation="nearest")
            camera.set_title(title, fontsize=8, color=style.INK, loc="left", pad=3)
    axes.set(xlim=(view.low[0], view.high[0]), ylim=(view.low[1], view.high[1]), xticks=[], yticks=[], aspect="equal")
    axes.set_facecolor(style.PAPER)
    for spine in axes.spines.values():
        spine.set_color(style.EDGE)
    draw_roads(axes, scene, view, centerline)
    draw_agents(axes, scene, view)
    draw_ego(axes, view)
    draw_rollouts(axes, view, driven)
    draw_list(beside, scene.name, rollouts)
    draw_key(beside, scene, driven)
    return figure


def _make_rollouts(
    poses: Tensor, scores: Scores, tags: Sequence[str | None], hits: Sequence[Tensor] | None
) -> list[Rollout]:
    steps = {short: scores.steps[name].tolist() for short, name in style.MARKED.items()}
    # From the filtered columns, because violations that the human filter lifts have no mark.
    violated = {short: (scores.columns[name] < 1).tolist() for short, name in style.MARKED.items()}
    uncomfortable = (~scores.comfort.all(1)).tolist()
    valid = scores.valid.tolist()
    totals = scores.epdms.nan_to_num(0).tolist()
    rollouts = []
    for row in range(len(valid)):
        marks = {short: steps[short][row] for short in style.MARKED if violated[short][row]}
        touched: list[Tensor] = []
        if hits is not None and violated["NC"][row]:
            touched = list(hits[row])
        rollouts.append(
            Rollout(
                number=row,
                tag=tags[row],
                poses=poses[row].cpu(),
                states=scores.states[row].cpu(),
                score=totals[row],
                valid=valid[row],
                marks=marks,
                hits=touched,
                uncomfortable=uncomfortable[row],
            )
        )
    return rollouts
