"""A prepared scene as tensors, and as bytes.

A record is one row of numbers per field, `lengths`, followed by the fields' values, each from a multiple of 8 bytes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from navsim_score.columns import COLUMNS
from navsim_score.scorer import Scorer
from navsim_score.simulation.timing import STEPS

FLOAT, INT, BOOL = torch.float64, torch.int64, torch.bool
FIELDS: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "start": (FLOAT, (7,)),  # [1]; this and the following are of `SceneBatch`
    "agent_poses": (FLOAT, (STEPS, 3)),  # [A]
    "agent_speeds": (FLOAT, (STEPS,)),  # [A]
    "agent_sizes": (FLOAT, (2,)),  # [A]
    "agent_present": (BOOL, (STEPS,)),  # [A]
    "agent_types": (INT, ()),  # [A]
    "agent_first_speed": (FLOAT, ()),  # [A]
    "flags": (BOOL, (4,)),  # [P] lane, on_route, drivable, intersection; the other polygons are `red`
    "red": (BOOL, (STEPS,)),  # [C]
    "bounds": (FLOAT, (4,)),  # [P + C]; this and the following are of `Polygons`
    "upright": (BOOL, ()),
    "low": (FLOAT, ()),
    "scale": (FLOAT, ()),
    "first_slab": (INT, ()),
    "ranges": (FLOAT, (4,)),
    "first_edge": (INT, ()),
    "edges": (FLOAT, (4,)),
    "outline": (FLOAT, (2, 2)),
    "first_outline": (INT, ()),
    "centerline": (FLOAT, (2,)),  # [points]
    "plan": (FLOAT, (STEPS, 3)),  # [1] the expert's
    "past": (FLOAT, (3,)),  # [steps] of `HistoryComfort`
    "expert_states": (FLOAT, (STEPS, 11)),  # [1]; this and the following are of `Expert`
    "expert_areas": (BOOL, (5, STEPS)),  # [1] in the order of `EgoAreas`
    "expert_progress": (FLOAT, (2,)),  # [1] meters, and DAC * DDC * TLC
    "human": (FLOAT, (len(COLUMNS),)),  # [1] in the order of `COLUMNS`
}
"""Type and shape of each field's rows; the number of rows is the scene's."""
ALIGNED = 8
"""Bytes of the widest numbers."""

Record = Mapping[str, Tensor]
"""Tensors of a scene by field, ``[rows, *shape]``."""


def record_of(scorer: Scorer) -> dict[str, Tensor]:
    """The record of a scorer of one scene, whose human filter is on."""
    batch = scorer.batch
    agents = batch.agents
    surfaces = batch.surfaces
    polygons = surfaces.polygons
    expert = scorer.expert
    areas = expert.areas
    human = scorer.human
    assert len(batch) == 1 and human is not None
    flags = (surfaces.lane, surfaces.on_route, surfaces.drivable, surfaces.intersection)
    values = {
        "start": batch.start,
        "agent_poses": agents.poses[0],
        "agent_speeds": agents.speeds[0],
        "agent_sizes": agents.sizes[0],
        "agent_present": agents.present[0],
        "agent_types": agents.types[0],
        "agent_first_speed": agents.first_speed[0],
        "flags": torch.stack([flag[0] for flag in flags], 1),
        "red": surfaces.red[0].T,
        "bounds": polygons.bounds,
        "upright": polygons.upright,
        "low": polygons.low,
        "scale": polygons.scale,
        "first_slab": polygons.first_slab,
        "ranges": polygons.ranges,
        "first_edge": polygons.first_edge,
        "edges": polygons.edges,
        "outline": polygons.outline,
        "first_outline": polygons.first_outline,
        "centerline": scorer.plans[0].centerline,
        "plan": batch.pdm,
        "past": scorer.comfort.past(0),
        "expert_states": expert.motion.states,
        "expert_areas": torch.stack([getattr(areas, name) for name in vars(areas)], 1),
        "expert_progress": torch.stack([expert.progress, expert.product], 1),
        "human": torch.stack([human[name] for name in COLUMNS], 1),
    }
    for name, (kind, shape) in FIELDS.items():
        assert values[name].dtype == kind and values[name].shape[1:] == shape, name
    return values


def to_bytes(record: Record) -> bytes:
    """The record as bytes, of a length that is a multiple of `ALIGNED`."""
    parts = [np.array([len(record[name]) for name in FIELDS], dtype=np.int64).tobytes()]
    for name in FIELDS:
        content = record[name].contiguous().numpy().tobytes()
        parts.append(content + bytes(-len(content) % ALIGNED))
    return b"".join(parts)


def from_bytes(content: Tensor) -> dict[str, Tensor]:
    """The record at the start of bytes ``[n]`` uint8, as views."""
    place = len(FIELDS) * ALIGNED
    lengths = content[:place].view(INT).tolist()
    record = {}
    for (name, (kind, shape)), length in zip(FIELDS.items(), lengths, strict=True):
        size = length * math.prod(shape) * kind.itemsize
        record[name] = content[place : place + size].view(kind).view(length, *shape)
        place += size + -size % ALIGNED
    return record
