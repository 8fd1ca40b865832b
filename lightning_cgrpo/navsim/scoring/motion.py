"""The sub-scores of the Extended PDM Score, over R rows (candidates) of S scenes. See docs/navsim_score.md §4 to §7."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import bounds
from lightning_cgrpo.scenes.vehicle import State, centers, corners, directions


@dataclass(frozen=True, eq=False)
class Motion:
    """How the ego moves in R rows.

    Args:
        scene: ``[R]`` int64, row -> scene.
        states: ``[R, 41, 11]``, see `vehicle.State`.
        corners: ``[R, 41, 4, 2]`` front left, rear left, rear right, front right.
        centers: ``[R, 41, 2]`` of the box.
        directions: ``[R, 41, 2]`` unit vectors forward.
        speeds: ``[R, 41]``.
        bounds: ``[R, 4]`` of all corners of all steps.
    """

    scene: Tensor
    states: Tensor
    corners: Tensor
    centers: Tensor
    directions: Tensor
    speeds: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, states: Tensor, scene: Tensor) -> Motion:
        box = corners(states)
        speeds = torch.hypot(states[..., State.VX], states[..., State.VY])
        return cls(scene, states, box, centers(states), directions(states), speeds, bounds(box.flatten(1, 2)))

    def __len__(self) -> int:
        return len(self.scene)

    def take(self, rows: Tensor) -> Motion:
        """Some rows, or rows several times."""
        return Motion(*(getattr(self, part.name)[rows] for part in fields(self)))


@dataclass(frozen=True, eq=False)
class Outcome:
    """A sub-score of R rows.

    Args:
        value: ``[R]`` in [0, 1].
        step: ``[R]`` int64, when it was first violated, -1 where it wasn't.
    """

    value: Tensor
    step: Tensor

    @classmethod
    def unless(cls, violated: Tensor, motion: Motion) -> Outcome:
        """1, or 0 where a step of ``violated [R, 41]`` bool is True."""
        return cls((~violated.any(1)).to(motion.states.dtype), first(violated))


def first(violated: Tensor) -> Tensor:
    """``[R]`` the first step of ``[R, T]`` bool that is True, -1 where none is."""
    return torch.where(violated.any(1), violated.int().argmax(1), -1)
