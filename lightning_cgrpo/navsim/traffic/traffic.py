"""What the others do while the ego drives: traffic, and the policies that make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch


@dataclass(frozen=True, eq=False)
class Traffic:
    """K rollouts of A agents over T steps of 0.1 s, step 0 being now; A is padded with agents that are never present.

    Args:
        poses: ``[K, A, T, 3]`` x, y, yaw of the boxes' centers; 0 where not present.
        sizes: ``[K, A, 2]`` length, width.
        present: ``[K, A, T]`` bool.
        types: ``[K, A]`` int64, of `AGENT_TYPES`, -1 where padded.
        first_speed: ``[K, A]`` m/s at the step of first appearance, which is what decides whether an agent counts as
            stopped.
        of_row: ``[R]`` int64, the rollout that each row (candidate) drives in.
        speeds: ``[K, A, T]`` m/s; or None where they are always those of the first appearance.
    """

    poses: Tensor
    sizes: Tensor
    present: Tensor
    types: Tensor
    first_speed: Tensor
    of_row: Tensor
    speeds: Tensor | None = None


class TrafficPolicy(Protocol):
    """Makes traffic for simulated candidates."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> Traffic:
        """The traffic that R candidates drive in.

        Args:
            batch: S scenes.
            states: ``[R, 41, 11]`` the simulated ego, in the batch's frames.
            scene: ``[R]`` int64, row -> scene.
        """
        ...
