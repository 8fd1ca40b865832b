"""Ego motion in R rows of S scenes, and the outcome of a sub-score."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from driving_scenes.vehicle import State, centers, corners, directions
from navsim_score.geometry.boxes import bounds

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


@dataclass(frozen=True, eq=False)
class Motion:
    """Motion of the ego."""

    scene: Tensor  # [R] int64, row -> scene
    states: Tensor  # [R, 41, 11], see `vehicle.State`
    corners: Tensor  # [R, 41, 4, 2] front left, rear left, rear right, front right
    centers: Tensor  # [R, 41, 2] of the box
    directions: Tensor  # [R, 41, 2] unit vectors forward
    speeds: Tensor  # [R, 41]
    bounds: Tensor  # [R, 4] of all corners of all steps

    @classmethod
    def of(cls, states: Tensor, scene: Tensor) -> Motion:
        box = corners(states)
        return cls(
            scene=scene,
            states=states,
            corners=box,
            centers=centers(states),
            directions=directions(states),
            speeds=torch.hypot(states[..., State.VX], states[..., State.VY]),
            bounds=bounds(box.flatten(1, 2)),
        )

    def __len__(self) -> int:
        return len(self.scene)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A sub-score of R rows."""

    value: Tensor  # [R] in [0, 1]
    step: Tensor  # [R] int64, first violated step, or -1

    @classmethod
    def unless(cls, violated: Tensor, motion: Motion) -> Outcome:
        """0 for rows of ``violated [R, 41]`` bool with a True step, else 1."""
        return cls((~violated.any(1)).to(motion.states.dtype), first(violated))


def first(violated: Tensor) -> Tensor:
    """``[R]`` first True step of ``[R, T]`` bool, -1 without any."""
    return torch.where(violated.any(1), violated.int().argmax(1), -1)


def take(record: Record, rows: slice | Tensor) -> Record:
    """Rows of a dataclass of tensors and dicts of tensors; rows may repeat."""
    values: dict[str, Any] = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, dict):
            values[part.name] = {name: column[rows] for name, column in value.items()}
        else:
            values[part.name] = value[rows]
    return replace(record, **values)
