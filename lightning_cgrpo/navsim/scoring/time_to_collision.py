"""Time to collision (docs/navsim_score.md §7)."""

from __future__ import annotations

import torch

from lightning_cgrpo.navsim.geometry.boxes import boxes_touch, dot
from lightning_cgrpo.navsim.official_constants import AHEAD, BEHIND, LOOK_AHEAD_STEPS, TTC_STOPPED_SPEED
from lightning_cgrpo.navsim.scoring.areas import EgoAreas
from lightning_cgrpo.navsim.scoring.encounters import Encounters
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.navsim.simulation.timing import DT


def time_to_collision_within_bound(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """TTC: 0 if the ego, moved on by up to 0.9 s at constant velocity, touches an agent ahead at its pose then.

    An agent beside the ego counts too, while the ego is in several lanes, off the road or in an intersection. After any
    other contact the agent is ignored. The last steps are left out if agents are not known 0.9 s later.
    """
    steps = min(motion.states.shape[1], encounters.poses.shape[1] - LOOK_AHEAD_STEPS[-1])
    look = motion.states.new_tensor(LOOK_AHEAD_STEPS) * DT
    travel = motion.directions[:, :steps] * motion.speeds[:, :steps, None]
    moved = travel[:, :, None] * look[:, None]  # [R, 32, 4, 2]
    then = torch.arange(steps, device=look.device)[:, None] + torch.tensor(LOOK_AHEAD_STEPS, device=look.device)
    apart = (motion.centers[:, :steps, None] + moved)[encounters.row] - encounters.poses[:, then, :2]
    close = (dot(apart, apart) <= encounters.radius[:, None, None] ** 2) & encounters.present[:, then]
    close &= (motion.speeds[:, :steps] >= TTC_STOPPED_SPEED)[encounters.row][..., None]
    pair, step, ahead = close.nonzero().unbind(1)
    row = encounters.row[pair]
    ego = motion.corners[row, step] + moved[row, step, ahead][:, None]
    touching = boxes_touch(ego, encounters.boxes(pair, then[step, ahead]))
    pair, step, ahead, row = pair[touching], step[touching], ahead[touching], row[touching]

    at = (row, step)
    angle = encounters.angles(pair, then[step, ahead], motion.states[at], motion.directions[at])
    unsafe = (areas.multiple_lanes | areas.non_drivable | areas.rear_in_intersection)[at]
    violating = (angle < AHEAD) | (unsafe & ~(angle > BEHIND))
    violating = encounters.not_excused(pair, step * len(LOOK_AHEAD_STEPS) + ahead, violating)
    value = motion.states.new_zeros(int(violating.sum()))
    return encounters.outcome(pair[violating], step[violating], value, len(motion))
