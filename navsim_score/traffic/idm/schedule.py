"""The order in which the vehicles of many rows decide, level by level.

A unit is a vehicle that is simulated once, either in one row or for all rows of its scene together.
A level is units that decide at the same time. Lower levels decide first, and higher levels see what they did.
"""

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


class UnitLinks(NamedTuple):
    """l pairs of a reader (a unit that keeps its distance) and an actor that it may meet, at m places.

    A place is a piece of the reader's lane and a slot of the actor, see `Schedule`.
    """

    reader: Tensor  # [l] int64 units
    other: Tensor  # [l] int64 actors
    at: Tensor  # [m] int64, the link of each place
    piece: Tensor  # [m] int64, the piece of the reader's lane
    slot: Tensor  # [m] int64, the slot of the other actor

    def joined(self, more: UnitLinks) -> UnitLinks:
        """These links, then `more`."""
        return UnitLinks(
            reader=torch.cat([self.reader, more.reader]),
            other=torch.cat([self.other, more.other]),
            at=torch.cat([self.at, more.at + len(self.reader)]),
            piece=torch.cat([self.piece, more.piece]),
            slot=torch.cat([self.slot, more.slot]),
        )


class Schedule:
    """Order in which the vehicles of R rows decide, around the rows' egos.

    A vehicle that no ego may influence is one unit for all rows of its scene; any other vehicle is a unit per row.
    Actors are U units, then R egos. An actor occupies rectangles, its slots.
    A unit has a slot per piece of lane within reach, and a last slot for its box; an ego has only its box.

    Args:
        network: rails of the scenes.
        states: of the egos, ``[R, 41, 11]``.
        scene: of each row, ``[R]`` int64.
    """

    def __init__(self, network: RailNetwork, states: Tensor, scene: Tensor) -> None:
        self.network = network
        self.states = states
        # The vehicles of every row, and which of them are units.
        counts = network.counts[scene]
        first_rail = starts(network.counts)[scene]
        self.row, self.vehicle_rail = expand(counts, first_rail)  # [V] int64, row ascending
        vehicle, piece = self._near_ego()
        alone = self._influenced_rails(vehicle)[self.vehicle_rail]
        shared = len(network.scene)
        key = torch.where(alone, shared + torch.arange(len(alone), device=alone.device), self.vehicle_rail)
        _, self.unit = key.unique(return_inverse=True)  # [V] int64
        units = int(self.unit.max()) + 1 if len(key) else 0
        self.rail = self.unit.new_zeros(units).scatter_(0, self.unit, self.vehicle_rail)  # [U] int64
        self.unit_row = self.unit.new_zeros(units).scatter_(0, self.unit, self.row)  # [U] any row of a shared unit
        self.alone = torch.zeros(units, dtype=torch.bool, device=alone.device)  # [U] of one row
        self.alone.scatter_(0, self.unit, alone)

        # The slots of units and egos.
        self.slots = torch.cat([network.reached[self.rail] + 1, scene.new_ones(len(scene))])  # [U + R] numbers of slots
        self.slot_actor, self.slot_number = expand(self.slots)  # [N] int64 of each slot
        self.first_slot = starts(self.slots)[:-1]
        self.box = self.first_slot + self.slots - 1  # [U + R] int64 slots of the actors' boxes
        self.lane_slots = (self.slot_number < self.slots[self.slot_actor] - 1).nonzero()[:, 0]  # slots but the boxes
        self.height = network.level[self.rail]  # [U] int64, the number of each unit's level

        # Who may meet whom, and the units of each level.
        links = self._vehicle_links(starts(counts)[:-1] - first_rail, scene)
        links = links.joined(self._ego_links(vehicle, piece))
        heights = int(self.height.max()) + 1 if units else 0
        self.levels = [self._make_level(height, links) for height in range(heights)]  # in order of decision

    def _near_ego(self) -> tuple[Tensor, Tensor]:
        """Pairs ``[n]`` int64: a vehicle that sees its row's ego, and a piece of its lane ahead, near this ego."""
        network = self.network
        pieces = network.pieces
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

    def _influenced_rails(self, near_ego: Tensor) -> Tensor:
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

    def _vehicle_links(self, shift: Tensor, scene: Tensor) -> UnitLinks:
        """Links between vehicles; a vehicle's number is its rail's plus its row's ``shift [R]``."""
        network = self.network
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
        # The places of each link.
        places = torch.bincount(links.meeting, minlength=len(links.reader))
        at, place = expand(places[link], starts(places)[link])
        slot = self.first_slot[other[at]] + links.slot[place]
        return UnitLinks(reader, other, at, links.piece[place], slot)

    def _ego_links(self, vehicle: Tensor, piece: Tensor) -> UnitLinks:
        """Links of vehicles to their rows' egos, at the pairs ``[n]`` of `_near_ego`."""
        units = len(self.rail)
        sees, at = vehicle.unique(return_inverse=True)
        slot = self.box[units + self.row[vehicle]]
        return UnitLinks(self.unit[sees], units + self.row[sees], at, piece, slot)

    def _make_level(self, height: int, links: UnitLinks) -> Level:
        """The level of this number, with its units' part of the links."""
        network = self.network
        units = (self.height == height).nonzero()[:, 0]
        position = torch.empty_like(self.height)
        position[units] = torch.arange(len(units), device=units.device)
        # The links whose readers are of the level, numbered anew, and their places.
        linked = self.height[links.reader] == height
        number = linked.cumsum(0) - 1
        placed = linked[links.at]
        at = links.at[placed]
        # The slots on the units' lanes.
        lanes = self.lane_slots[self.height[self.slot_actor[self.lane_slots]] == height]
        owner = self.slot_actor[lanes]
        lane_piece = network.first_reached[self.rail[owner]] + self.slot_number[lanes]
        return Level(
            units=units,
            reader=position[links.reader[linked]],
            other=links.other[linked],
            link=number[at],
            place=position[links.reader[at]],
            piece=network.pieces.take(links.piece[placed]),
            slot=links.slot[placed],
            lanes=lanes,
            lane_unit=position[owner],
            lane_piece=network.pieces.take(lane_piece),
        )
