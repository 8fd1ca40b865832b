"""Lanes and roadblocks of a growing `RoadMap`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from driving_scenes.generator.curve import STEP, Array, Curve
from driving_scenes.scene import Areas, Lanes, Points, Roadblocks, RoadMap

SAGITTA = 0.02
"""Meters by which a polygon's edge may cut a curve."""
SHOULDER = 0.3
"""Meters between a roadblock's edge and its outer lanes."""


@dataclass
class Lane:
    """A lane; `incoming` and `outgoing` are rows of lanes."""

    path: Curve
    polygon: Array
    block: int  # row
    width: float
    limit: float  # m/s
    incoming: list[int] = field(default_factory=list)
    outgoing: list[int] = field(default_factory=list)


@dataclass
class Block:
    """A roadblock; `incoming` and `outgoing` are rows of roadblocks."""

    polygon: Array
    connector: bool
    lanes: list[int]
    incoming: list[int] = field(default_factory=list)
    outgoing: list[int] = field(default_factory=list)


class RoadNetwork:
    """A growing map; a block's lanes count from the left."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.blocks: list[Block] = []
        self.intersections: list[Array] = []
        self.carparks: list[Array] = []

    def carriageway(self, divider: Curve, count: int, width: float, limit: float) -> list[int]:
        """Add a roadblock of lanes to the right of a divider; returns the lanes' rows."""
        centers = [divider.offset(-(i + 0.5) * width) for i in range(count)]
        return self._add_block(centers, width, limit, connector=False)

    def connect(self, pairs: Sequence[tuple[int, int]], limit: float) -> list[int]:
        """Add a roadblock of connectors between lanes (before, after); returns the connectors' rows."""
        paths = [Curve.between(self.lanes[before].path.end, self.lanes[after].path.start) for before, after in pairs]
        rows = self._add_block(paths, self.lanes[pairs[0][0]].width, limit, connector=True)
        for (before, after), row in zip(pairs, rows, strict=True):
            self.link(before, row)
            self.link(row, after)
        return rows

    def link(self, before: int, after: int) -> None:
        first = self.lanes[before]
        last = self.lanes[after]
        first.outgoing.append(after)
        last.incoming.append(before)
        if last.block not in self.blocks[first.block].outgoing:
            self.blocks[first.block].outgoing.append(last.block)
            self.blocks[last.block].incoming.append(first.block)

    def _add_block(self, paths: Sequence[Curve], width: float, limit: float, connector: bool) -> list[int]:
        rows = list(range(len(self.lanes), len(self.lanes) + len(paths)))
        for path in paths:
            polygon = strip(path, width / 2, -width / 2)
            self.lanes.append(Lane(path, polygon, len(self.blocks), width, limit))
        side = width / 2 + SHOULDER
        left_edge = _simplified_path(paths[0]).offset(side).xy
        right_edge = _simplified_path(paths[-1]).offset(-side).xy
        polygon = np.concatenate([left_edge, right_edge[::-1]])
        self.blocks.append(Block(polygon, connector, rows))
        return rows

    def trips(self) -> Iterator[tuple[int, ...]]:
        """Ways through the map, as rows of lanes."""
        ways: list[tuple[int, ...]] = [(row,) for row, lane in enumerate(self.lanes) if not lane.incoming]
        while ways:
            way = ways.pop()
            onward = self.lanes[way[-1]].outgoing
            if onward:
                ways.extend((*way, row) for row in onward)
            else:
                yield way

    def road_map(self) -> RoadMap:
        lanes = self.lanes
        blocks = self.blocks
        return RoadMap(
            lanes=Lanes(
                ids=tuple(f"lane{i}" for i in range(len(lanes))),
                polygons=Points.polygons([lane.polygon for lane in lanes]),
                centerlines=Points.polylines([lane.path.xy for lane in lanes]),
                connector=torch.tensor([blocks[lane.block].connector for lane in lanes]),
                roadblock=torch.tensor([lane.block for lane in lanes]),
                speed_limit=torch.tensor([lane.limit for lane in lanes], dtype=torch.float64),
                incoming=tuple(tuple(lane.incoming) for lane in lanes),
                outgoing=tuple(tuple(lane.outgoing) for lane in lanes),
            ),
            roadblocks=Roadblocks(
                ids=tuple(f"block{i}" for i in range(len(blocks))),
                polygons=Points.polygons([block.polygon for block in blocks]),
                connector=torch.tensor([block.connector for block in blocks]),
                lanes=tuple(tuple(block.lanes) for block in blocks),
                incoming=tuple(tuple(block.incoming) for block in blocks),
                outgoing=tuple(tuple(block.outgoing) for block in blocks),
            ),
            intersections=_named_areas("intersection", self.intersections),
            carparks=_named_areas("carpark", self.carparks),
            drivable_areas=_named_areas("drivable_area", []),
        )


def strip(path: Curve, left: float, right: float) -> Array:
    """The polygon between two parallels, `left` and `right` meters to the left of a path (negative: to the right)."""
    corners = _simplified_path(path)
    return np.concatenate([corners.offset(left).xy, corners.offset(right).xy[::-1]])


def _simplified_path(path: Curve) -> Curve:
    """The path with as few points as the curvature allows, the same for all parallels."""
    steps = len(path.yaw) - 1
    bend = float(np.abs(path.yaw[1:] - path.yaw[:-1]).max()) / STEP
    # A chord of length c cuts a bend of curvature b by c² b / 8.
    count = min(steps, int(np.ceil(steps * STEP * np.sqrt(bend / (8 * SAGITTA)))) + 1)
    chosen = (np.arange(count + 1) * (steps / count)).round().astype(int)
    return Curve(path.xy[chosen], path.yaw[chosen])


def _named_areas(kind: str, polygons: Sequence[Array]) -> Areas:
    return Areas(tuple(f"{kind}{i}" for i in range(len(polygons))), Points.polygons(polygons))
