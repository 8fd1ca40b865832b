"""Traffic around the ego, and the interface of the policies that make traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch


@dataclass(frozen=True, eq=False)
class Traffic:
    """K rollouts of A agents over T steps of 0.1 s from now on, padded with agents that are never present.

    Args:
        poses: ``[K, A, T, 3]`` x, y, yaw of the boxes' centers; 0 where absent.
        sizes: ``[K, A, 2]`` length, width.
        present: ``[K, A, T]`` bool.
        types: ``[K, A]`` int64 index into `AGENT_TYPES`, -1 for padding.
        first_speed: ``[K, A]`` m/s when first seen; officially decides whether an agent counts as stopped.
        of_row: ``[R]`` int64, the rollout of each row (candidate).
        speeds: ``[K, A, T]`` m/s.
    """

    poses: Tensor
    sizes: Tensor
    present: Tensor
    types: Tensor
    first_speed: Tensor
    of_row: Tensor
    speeds: Tensor


class TrafficPolicy(Protocol):
    """Makes traffic for simulated candidates."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> Traffic:
        """Make the traffic around R candidates.

        Args:
            batch: S scenes.
            states: ``[R, 41, 11]`` the simulated egos, in the batch's frames.
            scene: ``[R]`` int64, the scene of each row.
        """
        ...
