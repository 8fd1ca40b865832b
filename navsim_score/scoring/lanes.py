"""Driving direction, lane keeping, red lights and progress (docs/navsim_score.md §6, §7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from navsim_score.batch.surfaces import Surfaces
from navsim_score.geometry.boxes import bounds, bounds_touch
from navsim_score.geometry.polylines import Polylines
from navsim_score.official_constants import (
    LEAST_PROGRESS,
    MUCH_ONCOMING,
    OFF_CENTER,
    OFF_CENTER_STEPS,
    ONCOMING_STEPS,
    SOME_ONCOMING,
)
from navsim_score.scoring.areas import EgoAreas
from navsim_score.scoring.motion import Motion, Outcome, first


def driving_direction_compliance(motion: Motion, areas: EgoAreas) -> Outcome:
    """DDC: 0.5 from 2 m, 0 from 6 m driven within 1.1 s off the route's lanes, outside intersections, else 1."""
    moved = pad((motion.centers[:, 1:] - motion.centers[:, :-1]).norm(dim=-1), (1, 0))
    oncoming = torch.where(areas.oncoming & ~areas.center_in_intersection, moved, 0)
    recent = pad(oncoming, (ONCOMING_STEPS - 1, 0)).unfold(1, ONCOMING_STEPS, 1).sum(-1)
    most = recent.amax(1)
    reached = (most >= SOME_ONCOMING).to(most) + (most >= MUCH_ONCOMING).to(most)  # thresholds, 0 to 2
    value = 1 - reached / 2
    return Outcome(value, first(recent >= SOME_ONCOMING))


def lane_keeping(centerlines: Polylines, motion: Motion, areas: EgoAreas) -> Outcome:
    """LK: 0 for 2 s in a row over 0.5 m off the centerline; time in intersections neither counts nor resets."""
    outside = ~areas.center_in_intersection
    off_center = ~centerlines.within(motion.centers, motion.scene, OFF_CENTER)
    # Steps off the center so far, minus their number at the last step near the center.
    count = (off_center & outside).int().cumsum(1)
    at_reset = torch.where(~off_center & outside, count, 0).cummax(1).values
    violated = count - at_reset >= OFF_CENTER_STEPS
    return Outcome.unless(violated, motion)


def traffic_light_compliance(surfaces: Surfaces, motion: Motion) -> Outcome:
    """TLC: 0 where the box ever touches a connector of the mission's route while it is red."""
    running = torch.zeros(motion.states.shape[:2], dtype=torch.bool, device=motion.states.device)
    red = surfaces.red[motion.scene]  # [R, 41, C]
    if red.shape[2]:
        box = surfaces.polygons.bounds[surfaces.red_table]
        near = red & bounds_touch(bounds(motion.corners)[:, :, None], box[motion.scene][:, None])
        row, step, column = near.nonzero().unbind(1)
        polygon = surfaces.red_table[motion.scene[row], column]
        touching = surfaces.polygons.touch_boxes(motion.corners[row, step], polygon)
        running[row[touching], step[touching]] = True
    return Outcome.unless(running, motion)


def raw_progress(centerlines: Polylines, motion: Motion) -> Tensor:
    """``[R]`` meters, at least 0, of the box's center along the centerline in 4 s."""
    ends = torch.cat([motion.centers[:, 0], motion.centers[:, -1]])
    start, end = centerlines.project(ends, motion.scene.repeat(2)).chunk(2)
    return (end - start).clamp(min=0)


def ego_progress(raw: Tensor, product: Tensor, expert_raw: Tensor, expert_product: Tensor) -> Tensor:
    """EP ``[R]``: raw progress over the larger of the candidate's and the expert's masked progress, in [0, 1].

    EP is 1 where both masked progresses are at most 5 m.

    Args:
        raw: ``[R]`` `raw_progress`.
        product: ``[R]`` NC * DAC * DDC * TLC, which masks (multiplies) progress.
        expert_raw: ``[R]`` of the simulated expert plan.
        expert_product: ``[R]`` of the expert plan in the same traffic.
    """
    most = torch.maximum(raw * product, expert_raw * expert_product)
    counts = most > LEAST_PROGRESS
    share = raw / torch.where(counts, most, 1)
    return torch.where(counts, share.clamp(0, 1), 1)
