"""The Intelligent Driver Model.

See docs/navsim_score.md §10; officially nuPlan's idm_policy.py, and navsim_IDM_traffic_agents.yaml.
"""

from __future__ import annotations

from torch import Tensor

from lightning_cgrpo.navsim.simulation.timing import DT

MIN_GAP = 1.0
HEADWAY = 1.5
"""Seconds; also those for which a vehicle occupies the lane ahead of it."""
ACCELERATION = 1.0
DECELERATION = 2.0
EXPONENT = 4


def next_speed(speed: Tensor, target: Tensor, gap: Tensor, leader_speed: Tensor) -> Tensor:
    """Speeds ``[...]`` a step later.

    Args:
        speed: m/s.
        target: on a free road.
        gap: meters to the leader.
        leader_speed: in the direction of the vehicle.
    """
    wanted = MIN_GAP + speed * HEADWAY + speed * (speed - leader_speed) / (2 * (ACCELERATION * DECELERATION) ** 0.5)
    free = (speed / target) ** EXPONENT
    change = ACCELERATION * (1 - free - (wanted / gap.clamp(min=MIN_GAP)) ** 2)
    changed: Tensor = speed + DT * change.clamp(-DECELERATION, ACCELERATION)
    return changed.clamp(min=0)
