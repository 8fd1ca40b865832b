"""The order of decisions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from driving_scenes.vehicle import LENGTH, WIDTH, State
from navsim_score.geometry.boxes import bounds, bounds_touch, grown
from navsim_score.geometry.ranges import expand, starts
from navsim_score.simulation.timing import DURATION
from navsim_score.traffic.idm.model import ACCELERATION, TRAFFIC_RADIUS
from navsim_score.traffic.idm.pieces import Pieces
from navsim_score.traffic.idm.rail_network import RailNetwork


class Level(NamedTuple):
    """n units that decide at once, with l links at m places."""

    units: Tensor  # [n]
    reader: Tensor  # [l] position in `units`
    other: Tensor  # [l] actor
    link: Tensor  # [m] link of each place
    place: Tensor  # [m] position of the reader in `units`
    piece: Pieces  # [m] pieces of the readers' lanes
    slot: Tensor  # [m] slot of the other actor
    lanes: Tensor  # [k] slots of `units` for pieces of their lanes
    lane_unit: Tensor  # [k] position in `units`
    lane_piece: Pieces  # [k] pieces of the units' lanes


class Schedule:
    """Order in which the vehicles of R rows decide, around the rows' egos.

    A vehicle that no ego may influence is one unit for all rows of its scene; any other vehicle is a unit per row.
    Actors are U units, then R egos. An actor occupies rectangles, its slots.
    A unit has a slot per piece of lane within reach, and a last slot for its box; an ego has only its box.
    """

    def __init__(self, network: RailNetwork, states: Tensor, scene: Tensor) -> None:  # [R, 41, 11] egos, [R] int64
        self.network = network
        self.states = states
        counts = network.counts[scene]
        first_rail = starts(network.counts)[scene]
        self.row, self.vehicle_rail = expand(counts, first_rail)  # [V] int64, row ascending
        vehicle, piece = self._near_ego()
        alone = self._influenced(vehicle)[self.vehicle_rail]
        shared = len(network.scene)
        key = torch.where(alone, shared + torch.arange(len(alone), device=alone.device), self.vehicle_rail)
        _, self.unit = key.unique(return_inverse=True)  # [V] int64
        units = int(self.unit.max()) + 1 if len(key) else 0
        self.rail = self.unit.new_zeros(units).scatter_(0, self.unit, self.vehicle_rail)  # [U] int64
        self.unit_row = self.unit.new_zeros(units).scatter_(0, self.unit, self.row)  # [U] any row of a shared unit
        self.alone = torch.zeros(units, dtype=torch.bool, device=alone.device)  # [U] of one row
        self.alone.scatter_(0, self.unit, alone)

        self.slots = torch.cat([network.reached[self.rail] + 1, scene.new_ones(len(scene))])  # [U + R] numbers of slots
        self.slot_actor, self.slot_number = expand(self.slots)  # [N] int64 of each slot
        self.first_slot = starts(self.slots)[:-1]
        self.box = self.first_slot + self.slots - 1  # [U + R] int64 slots of the actors' boxes
        self.levels = self._levels(starts(counts)[:-1] - first_rail, scene, vehicle, piece)

    def _near_ego(self) -> tuple[Tensor, Tensor]:
        """Pairs ``[n]`` int64: a vehicle that sees its row's ego, and a piece of its lane ahead, near this ego."""
        network, pieces = self.network, self.network.pieces
        swept = grown(bounds(self.states[..., : State.YAW]), LENGTH + WIDTH)
        first = network.first_piece[self.vehicle_rail]
        vehicle, piece = expand(network.first_piece[self.vehicle_rail + 1] - first, first)
        end = pieces.start + pieces.step * (pieces.end - pieces.begin)[:, None]
        box = grown(bounds(torch.stack([pieces.start, end], 1)), pieces.half_width[:, None])
        rail = self.vehicle_rail[vehicle]
        begin = torch.minimum(network.progress, network.last_begin(torch.arange(len(network.last), device=rail.device)))
        ahead = (pieces.end[piece] > begin[rail]) & network.sees_ego[rail]
        near = ahead & bounds_touch(swept[self.row[vehicle]], box[piece])
        return vehicle[near], piece[near]

    def _influenced(self, near_ego: Tensor) -> Tensor:
        """Rails ``[G]`` bool that an ego may influence, given the vehicles ``[n]`` int64 near egos."""
        network = self.network
        influenced = torch.zeros(len(network.scene), dtype=torch.bool, device=self.row.device)
        influenced[self.vehicle_rail[near_ego]] = True
        # Vehicles that may get too far from the ego, which removes them.
        everyone = torch.arange(len(network.scene), device=self.row.device)
        start = network.pose_at(everyone, network.progress)[:, None, :2]
        travel = DURATION * (network.speed + DURATION * ACCELERATION / 2)[:, None]
        points = torch.where(network.distances.isfinite()[..., None], network.poses[..., :2], start)
        around = grown(bounds(start), travel)
        lane = bounds(points)
        low = torch.maximum(around, lane)[:, :2]
        high = torch.minimum(around, lane)[:, 2:]
        swept = bounds(self.states[..., : State.YAW])[self.row]
        rail = self.vehicle_rail
        farthest = torch.maximum(high[rail] - swept[:, :2], swept[:, 2:] - low[rail]).norm(dim=1)
        influenced[self.vehicle_rail[~(farthest < TRAFFIC_RADIUS)]] = True
        # Whoever reads an influenced vehicle is influenced too.
        links = network.links
        count = -1
        while count != int(influenced.sum()):
            count = int(influenced.sum())
            influenced[links.reader[influenced[links.other]]] = True
        return influenced

    def _levels(self, shift: Tensor, scene: Tensor, ego_vehicle: Tensor, ego_piece: Tensor) -> list[Level]:
        """Levels in order of decision; a vehicle's number is its rail's plus its row's ``shift [R]``."""
        network = self.network
        units = len(self.rail)
        links = network.links
        # A link for every row of its scene, but only one link between shared units.
        of_scene = torch.bincount(network.scene[links.reader], minlength=len(network.counts))
        row, link = expand(of_scene[scene], starts(of_scene)[scene])
        reader = self.unit[links.reader[link] + shift[row]]
        other = self.unit[links.other[link] + shift[row]]
        once = self.alone[reader] | (self.unit_row[reader] == row)
        reader = reader[once]
        other = other[once]
        link = link[once]
        # The places of each link: a piece of the reader's lane, and a slot of the other.
        places = torch.bincount(links.meeting, minlength=len(links.reader))
        at, place = expand(places[link], starts(places)[link])
        piece = links.piece[place]
        slot = self.first_slot[other[at]] + links.slot[place]
        # The links to egos, at the pieces near them.
        sees, ego_link = ego_vehicle.unique(return_inverse=True)
        at = torch.cat([at, ego_link + len(reader)])
        piece = torch.cat([piece, ego_piece])
        slot = torch.cat([slot, self.box[units + self.row[ego_vehicle]]])
        reader = torch.cat([reader, self.unit[sees]])
        other = torch.cat([other, units + self.row[sees]])

        level = network.level[self.rail]
        lane_slots = (self.slot_number < self.slots[self.slot_actor] - 1).nonzero()[:, 0]
        position = torch.empty_like(level)
        levels = []
        for height in range(int(level.max()) + 1 if units else 0):
            mine = (level == height).nonzero()[:, 0]
            position[mine] = torch.arange(len(mine), device=mine.device)
            of_level = level[reader] == height
            renumbered = of_level.cumsum(0) - 1
            kept = of_level[at]
            lanes = lane_slots[level[self.slot_actor[lane_slots]] == height]
            owner = self.slot_actor[lanes]
            levels.append(
                Level(
                    units=mine,
                    reader=position[reader[of_level]],
                    other=other[of_level],
                    link=renumbered[at[kept]],
                    place=position[reader[at[kept]]],
                    piece=network.pieces.take(piece[kept]),
                    slot=slot[kept],
                    lanes=lanes,
                    lane_unit=position[owner],
                    lane_piece=network.pieces.take(network.first_reached[self.rail[owner]] + self.slot_number[lanes]),
                )
            )
        return levels
