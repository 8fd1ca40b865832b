"""Map areas under the ego at each step, and DAC (docs/navsim_score.md §5, §6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from navsim_score.batch.surfaces import Surfaces
from navsim_score.geometry.boxes import bounds_touch
from navsim_score.scoring.motion import Motion, Outcome

CENTER = 4
"""Index of the box's center, after four corners and before the rear axle."""


@dataclass(frozen=True, eq=False)
class EgoAreas:
    """Flags of R rows, each ``[R, 41]`` bool."""

    non_drivable: Tensor  # a corner is on no drivable surface (lane connectors are none)
    multiple_lanes: Tensor  # corners are on several lanes, and no lane has all four
    oncoming: Tensor  # the box's center is on no lane of the route
    center_in_intersection: Tensor  # the box's center
    rear_in_intersection: Tensor  # the middle of the rear axle


def ego_areas(surfaces: Surfaces, motion: Motion) -> EgoAreas:
    """Look up the areas under the egos."""
    points = torch.cat([motion.corners, motion.centers[:, :, None], motion.states[:, :, None, :2]], 2)  # [R, 41, 6, 2]
    scene = motion.scene
    polygons = surfaces.polygons
    # Pairs of a row and a polygon near it.
    box = polygons.bounds[surfaces.table]
    real = surfaces.lane | surfaces.drivable  # not padding
    row, column = (real[scene] & bounds_touch(motion.bounds[:, None], box[scene])).nonzero().unbind(1)
    of_scene = scene[row]
    inside = polygons.contain(points.flatten(1, 2)[row], surfaces.table[of_scene, column])
    inside = inside.view(len(row), *points.shape[1:3])  # [pairs, 41, 6]

    def total(flag: Tensor, values: Tensor) -> Tensor:
        """``[R, 41, …]`` sums of ``[pairs, 41, …]`` over polygons with the flag."""
        chosen = flag[of_scene, column].nonzero()[:, 0]
        sums = torch.zeros(len(scene), *values.shape[1:], dtype=torch.int32, device=values.device)
        return sums.index_add_(0, row[chosen], values[chosen].int())

    corners = inside[..., :CENTER]
    intersections = total(surfaces.intersection, inside[..., CENTER:]) > 0
    lanes_of_corners = total(surfaces.lane, corners.any(-1))
    lanes_of_all_corners = total(surfaces.lane, corners.all(-1))
    return EgoAreas(
        non_drivable=(total(surfaces.drivable, corners) == 0).any(-1),
        multiple_lanes=(lanes_of_corners > 1) & (lanes_of_all_corners == 0),
        oncoming=total(surfaces.on_route, inside[..., CENTER]) == 0,
        center_in_intersection=intersections[..., 0],
        rear_in_intersection=intersections[..., 1],
    )


def drivable_area_compliance(motion: Motion, areas: EgoAreas) -> Outcome:
    """DAC: 0 where a corner ever leaves the drivable surface."""
    return Outcome.unless(areas.non_drivable, motion)
