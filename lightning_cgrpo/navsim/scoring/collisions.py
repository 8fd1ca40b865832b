"""Collisions at fault (docs/navsim_score.md §6)."""

from __future__ import annotations

import torch

from lightning_cgrpo.navsim.geometry.boxes import boxes_touch, dot, segments_touch_boxes
from lightning_cgrpo.navsim.official_constants import BEHIND, STATIC_OBJECT_SCORE, STOPPED_SPEED
from lightning_cgrpo.navsim.scoring.areas import EgoAreas
from lightning_cgrpo.navsim.scoring.encounters import Encounters
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.scenes.scene import MOVING_TYPES


def no_at_fault_collisions(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """NC: 0 for an at-fault collision with a vehicle, pedestrian or bicycle, 0.5 with other objects only.

    A moving ego is at fault if the agent stands still. Unless the agent is behind, a moving ego is also at fault when
    its front bumper touches, or in several lanes, or off the road. After a contact without fault the agent is ignored.
    """
    steps = motion.states.shape[1]
    apart = motion.centers[encounters.row] - encounters.poses[:, :steps, :2]
    close = (dot(apart, apart) <= encounters.radius[:, None] ** 2) & encounters.present[:, :steps]
    pair, step = close.nonzero().unbind(1)
    ego = motion.corners[encounters.row[pair], step]
    touching = boxes_touch(ego, encounters.boxes(pair, step))
    pair, step, ego = pair[touching], step[touching], ego[touching]

    at = (encounters.row[pair], step)
    behind = encounters.angles(pair, step, motion.states[at], motion.directions[at]) > BEHIND
    front = segments_touch_boxes(ego[:, 0], ego[:, 3], encounters.boxes(pair, step))
    static = encounters.types[pair] >= MOVING_TYPES
    stopped = static | (encounters.speeds[pair, step] <= STOPPED_SPEED)
    unsafe = (areas.multiple_lanes | areas.non_drivable)[at]
    at_fault = (motion.speeds[at] > STOPPED_SPEED) & (stopped | (~behind & (front | unsafe)))
    at_fault = encounters.not_excused(pair, step, at_fault)
    value = torch.where(static[at_fault], STATIC_OBJECT_SCORE, 0).to(motion.states)
    return encounters.outcome(pair[at_fault], step[at_fault], value, len(motion))
