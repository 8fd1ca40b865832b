"""Traffic around the ego, and its policies' interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch


@dataclass(frozen=True, eq=False)
class TrafficRollouts:
    """K rollouts of A agents over T steps of 0.1 s, padded with absent agents."""

    poses: Tensor  # [K, A, T, 3] x, y, yaw of the boxes' centers; 0 where absent
    sizes: Tensor  # [K, A, 2] length, width
    present: Tensor  # [K, A, T] bool
    types: Tensor  # [K, A] int64 index into `AGENT_TYPES`, -1 for padding
    first_speed: Tensor  # [K, A] m/s when first seen; officially decides whether an agent counts as stopped
    of_row: Tensor  # [R] int64, the rollout of each row (candidate)
    speeds: Tensor  # [K, A, T] m/s


class TrafficPolicy(Protocol):
    """Makes traffic for simulated candidates."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> TrafficRollouts:
        """Make traffic around R simulated egos ``states [R, 41, 11]`` in scenes ``scene [R]`` int64."""
