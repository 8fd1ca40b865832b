"""The Intelligent Driver Model (IDM). docs/navsim_score_scenes.md §10; officially nuPlan's idm_policy.py.

Parameters: navsim_IDM_traffic_agents.yaml.
"""

from __future__ import annotations

from torch import Tensor

from navsim_score.simulation.timing import DT

MIN_GAP = 1.0
HEADWAY = 1.5  # seconds between a vehicle and its leader; a vehicle also occupies the lane ahead for this time
ACCELERATION = 1.0
DECELERATION = 2.0
EXPONENT = 4
TRAFFIC_RADIUS = 100.0  # meters from the ego beyond which vehicles are removed for good


def next_speed(speed: Tensor, target: Tensor, gap: Tensor, leader_speed: Tensor) -> Tensor:
    """Speeds ``[...]`` in m/s 0.1 s later; ``leader_speed`` is in the vehicle's direction."""
    closing = speed * (speed - leader_speed) / (2 * (ACCELERATION * DECELERATION) ** 0.5)
    wanted_gap = MIN_GAP + speed * HEADWAY + closing
    free = (speed / target) ** EXPONENT
    change = ACCELERATION * (1 - free - (wanted_gap / gap.clamp(min=MIN_GAP)) ** 2)
    changed: Tensor = speed + DT * change.clamp(-DECELERATION, ACCELERATION)
    return changed.clamp(min=0)
