"""Collisions at fault.

See docs/navsim_score.md §6; officially ``pdm_scorer.py:363-420`` and ``pdm_scorer_utils.py:12-64``.
"""

from __future__ import annotations

import torch

from lightning_cgrpo.navsim.geometry.boxes import dot, segments_touch_boxes
from lightning_cgrpo.navsim.scoring.areas import EgoAreas
from lightning_cgrpo.navsim.scoring.encounters import BEHIND, Encounters
from lightning_cgrpo.navsim.scoring.motion import Motion, Outcome
from lightning_cgrpo.scenes.scene import MOVING_TYPES

STOPPED = 0.05
"""m/s up to which the ego or an agent stands still."""
THING = 0.5
"""The score of hitting what doesn't move by itself."""


def no_at_fault_collisions(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """NC: 0 where the ego collides and is at fault, 0.5 if only with things that don't move by themselves.

    It is at fault if it moves, and touches what stands still (when first seen, see `Fixes`), or with its front bumper
    what isn't behind it, or with another part what isn't behind while it is in several lanes or off the road. After a
    contact where it isn't, that agent is ignored.
    """
    apart = motion.centers[encounters.row] - encounters.poses[..., :2]
    close = (dot(apart, apart) <= encounters.radius[:, None] ** 2) & encounters.present
    pair, step = close.nonzero().unbind(1)
    ego = motion.corners[encounters.row[pair], step]
    touching = encounters.touching(pair, step, ego)
    pair, step, ego = pair[touching], step[touching], ego[touching]

    at = (encounters.row[pair], step)
    behind = encounters.angles(pair, step, motion.states[at], motion.directions[at]) > BEHIND
    front = segments_touch_boxes(ego[:, 0], ego[:, 3], encounters.boxes(pair, step))
    thing = encounters.types[pair] >= MOVING_TYPES
    stopped = thing | (encounters.speeds[pair, step] <= STOPPED)
    unsafe = (areas.multiple_lanes | areas.non_drivable)[at]
    at_fault = (motion.speeds[at] > STOPPED) & (stopped | (~behind & (front | unsafe)))
    at_fault = encounters.not_excused(pair, step, at_fault)
    value = torch.where(thing[at_fault], THING, 0).to(motion.states)
    return encounters.outcome(pair[at_fault], step[at_fault], value, len(motion))
