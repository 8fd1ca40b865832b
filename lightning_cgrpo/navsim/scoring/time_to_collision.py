"""Time to collision. See docs/navsim_score.md §7; officially ``pdm_scorer.py:492-580``."""

from __future__ import annotations

import torch

from lightning_cgrpo.navsim.geometry.boxes import dot
from lightning_cgrpo.navsim.scoring.areas import EgoAreas
from lightning_cgrpo.navsim.scoring.encounters import AHEAD, BEHIND, Encounters
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.navsim.simulation.timing import DT

STOPPED = 0.005
"""m/s below which the ego can't run into anything."""
LOOK_AHEAD = (0, 3, 6, 9)
"""Steps that the ego is moved on, with constant velocity."""


def time_to_collision_within_bound(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """TTC: 0 where going on for up to 0.9 s would touch an agent (where that is by then) that is ahead.

    Or one that isn't behind, while the ego is in several lanes, off the road or in an intersection. After a contact
    that is neither, that agent is ignored.
    """
    steps = motion.states.shape[1] - LOOK_AHEAD[-1]
    look = motion.states.new_tensor(LOOK_AHEAD) * DT
    travel = motion.directions[:, :steps] * motion.speeds[:, :steps, None]
    moved = travel[:, :, None] * look[:, None]  # [R, 32, 4, 2]
    then = torch.arange(steps, device=look.device)[:, None] + torch.tensor(LOOK_AHEAD, device=look.device)
    apart = (motion.centers[:, :steps, None] + moved)[encounters.row] - encounters.poses[:, then, :2]
    close = (dot(apart, apart) <= encounters.radius[:, None, None] ** 2) & encounters.present[:, then]
    close &= (motion.speeds[:, :steps] >= STOPPED)[encounters.row][..., None]
    pair, step, ahead = close.nonzero().unbind(1)
    row = encounters.row[pair]
    ego = motion.corners[row, step] + moved[row, step, ahead][:, None]
    touching = encounters.touching(pair, then[step, ahead], ego)
    pair, step, ahead, row = pair[touching], step[touching], ahead[touching], row[touching]

    at = (row, step)
    angle = encounters.angles(pair, then[step, ahead], motion.states[at], motion.directions[at])
    unsafe = (areas.multiple_lanes | areas.non_drivable | areas.rear_in_intersection)[at]
    violating = (angle < AHEAD) | (unsafe & ~(angle > BEHIND))
    violating = encounters.not_excused(pair, step * len(LOOK_AHEAD) + ahead, violating)
    value = motion.states.new_zeros(int(violating.sum()))
    return encounters.outcome(pair[violating], step[violating], value, len(motion))
