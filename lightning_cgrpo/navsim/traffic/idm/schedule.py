"""Who decides when: the vehicles of many rows, in an order in which as many as possible decide at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.boxes import bounds, bounds_touch, expand
from lightning_cgrpo.navsim.traffic.idm.links import HORIZON
from lightning_cgrpo.navsim.traffic.idm.model import ACCELERATION
from lightning_cgrpo.navsim.traffic.idm.network import Network
from lightning_cgrpo.navsim.traffic.idm.pieces import Pieces
from lightning_cgrpo.navsim.traffic.idm.rails import RADIUS
from lightning_cgrpo.scenes.vehicle import LENGTH, WIDTH, State


@dataclass(frozen=True, eq=False)
class Level:
    """Units that decide at the same time. Links are pairs of one of these and another actor in its way.

    Args:
        units: ``[n]``.
        reader: ``[l]`` position in `units`.
        other: ``[l]`` actor.
        link: ``[m]`` link of each place where they may meet.
        place: ``[m]`` position in `units`.
        piece: ``[m]`` of the reader's lane.
        slot: ``[m]`` of the other.
        lanes: ``[k]`` slots of `units` that are pieces of lanes.
        lane_unit: ``[k]`` position in `units`.
        lane_piece: ``[k]``.
    """

    units: Tensor
    reader: Tensor
    other: Tensor
    link: Tensor
    place: Tensor
    piece: Pieces
    slot: Tensor
    lanes: Tensor
    lane_unit: Tensor
    lane_piece: Pieces


class Schedule:
    """The vehicles of R rows and their egos.

    Vehicles on which no ego has any influence do the same in all rows of a scene, and are one unit; of all others
    there is a unit for each row. Actors are the U units and then the R egos. What an actor occupies is a set of
    rectangles, its slots: one for each piece of its lane that it may come to, and one for its box.

    Args:
        network: rails.
        states: ``[R, 41, 11]`` of the egos.
        scene: ``[R]`` int64.

    Attributes:
        row: ``[V]`` int64, ascending, of every vehicle of every row.
        vehicle_rail: ``[V]`` int64.
        unit: ``[V]`` int64.
        rail: ``[U]`` int64.
        unit_row: ``[U]`` int64, of a unit that is shared by rows any of them.
        own: ``[U]`` bool, not shared.
        slots: ``[U + R]`` int64, of each actor.
        first_slot: ``[U + R]`` int64.
        box: ``[U + R]`` int64, the slot of the actor's box, its last one.
        slot_actor: ``[N]`` int64, of each slot.
        levels: those who decide at the same time, one after the other.
    """

    def __init__(self, network: Network, states: Tensor, scene: Tensor) -> None:
        self.network = network
        self.states = states
        counts = network.counts
        self.row, number = expand(counts[scene])  # of vehicles
        first_rail = counts.cumsum(0) - counts
        self.vehicle_rail = first_rail[scene[self.row]] + number
        vehicle, piece = self._near_ego()
        own = self._influenced(vehicle)[self.vehicle_rail]
        # Vehicles that have a unit of their own, and one of each of the others.
        shared = len(network.scene)
        key = torch.where(own, shared + torch.arange(len(own), device=own.device), self.vehicle_rail)
        _, self.unit = key.unique(return_inverse=True)
        units = int(self.unit.max()) + 1 if len(key) else 0
        self.rail, self.unit_row = (
            self.unit.new_zeros(units).scatter_(0, self.unit, values) for values in (self.vehicle_rail, self.row)
        )
        self.own = torch.zeros(units, dtype=torch.bool, device=own.device).scatter_(0, self.unit, own)

        self.slots = torch.cat([network.reached[self.rail] + 1, scene.new_ones(len(scene))])
        self.slot_actor, self.slot_number = expand(self.slots)
        self.first_slot = self.slots.cumsum(0) - self.slots
        self.box = self.first_slot + self.slots - 1
        first_vehicle = counts[scene].cumsum(0) - counts[scene]
        self.levels = self._levels(first_vehicle - first_rail[scene], scene, vehicle, piece)

    def _near_ego(self) -> tuple[Tensor, Tensor]:
        """Vehicles and pieces of their lanes that the ego of their row may come to."""
        network = self.network
        swept = self._swept(LENGTH + WIDTH)
        vehicle, number = expand(network.piece_counts[self.vehicle_rail])
        piece = (network.piece_counts.cumsum(0) - network.piece_counts)[self.vehicle_rail[vehicle]] + number
        pieces = network.pieces
        end = pieces.start + pieces.step * (pieces.end - pieces.begin)[:, None]
        box = bounds(torch.stack([pieces.start, end], 1))
        box = box + pieces.half_width[:, None] * box.new_tensor([-1.0, -1.0, 1.0, 1.0])
        rail = self.vehicle_rail[vehicle]
        begin = torch.minimum(network.progress, network.last_begin(torch.arange(len(network.last), device=rail.device)))
        ahead = (pieces.end[piece] > begin[rail]) & network.sees_ego[rail]
        near = ahead & bounds_touch(swept[self.row[vehicle]], box[piece])
        return vehicle[near], piece[near]

    def _swept(self, margin: float) -> Tensor:
        """Bounds ``[R, 4]`` of the egos' rear axles, and a margin."""
        position = self.states[..., : State.YAW]
        return bounds(position) + margin * position.new_tensor([-1.0, -1.0, 1.0, 1.0])

    def _influenced(self, near_ego: Tensor) -> Tensor:
        """``[G]`` bool, rails on which what an ego does may have influence.

        Args:
            near_ego: vehicles that come near their ego.
        """
        network = self.network
        influenced = torch.zeros(len(network.scene), dtype=torch.bool, device=self.row.device)
        influenced[self.vehicle_rail[near_ego]] = True
        # Those that may come too far from it.
        everyone = torch.arange(len(network.scene), device=self.row.device)
        start = network.pose_at(everyone, network.progress)[:, None, :2]
        travel = HORIZON * (network.speed + HORIZON * ACCELERATION / 2)[:, None] * start.new_tensor([-1, -1, 1, 1])
        points = torch.where(network.distances.isfinite()[..., None], network.poses[..., :2], start)
        around, lane = bounds(start) + travel, bounds(points)
        low, high = torch.maximum(around, lane)[:, :2], torch.minimum(around, lane)[:, 2:]
        swept, rail = self._swept(0.0)[self.row], self.vehicle_rail
        farthest = torch.maximum(high[rail] - swept[:, :2], swept[:, 2:] - low[rail]).norm(dim=1)
        influenced[self.vehicle_rail[~(farthest < RADIUS)]] = True
        links, count = network.links, -1
        while count != int(influenced.sum()):
            count = int(influenced.sum())
            influenced[links.reader[influenced[links.other]]] = True
        return influenced

    def _levels(self, shift: Tensor, scene: Tensor, ego_vehicle: Tensor, ego_piece: Tensor) -> list[Level]:
        """The order of decisions.

        Args:
            shift: ``[R]`` what leads from a rail to its vehicle in a row.
            scene: ``[R]``.
            ego_vehicle: vehicles near their ego.
            ego_piece: where.
        """
        network, units = self.network, len(self.rail)
        links = network.links
        # Links for every row of their scene, but only one for those between shared units.
        of_scene = torch.bincount(network.scene[links.reader], minlength=len(network.counts))
        row, number = expand(of_scene[scene])
        link = (of_scene.cumsum(0) - of_scene)[scene[row]] + number
        reader, other = (self.unit[rail[link] + shift[row]] for rail in (links.reader, links.other))
        once = self.own[reader] | (self.unit_row[reader] == row)
        reader, other, link = reader[once], other[once], link[once]
        places = torch.bincount(links.meeting, minlength=len(links.reader))
        at, number = expand(places[link])
        place = (places.cumsum(0) - places)[link[at]] + number
        piece, slot = links.piece[place], self.first_slot[other[at]] + links.slot[place]
        # And the egos, at those pieces that they come near.
        sees, ego_link = ego_vehicle.unique(return_inverse=True)
        slot = torch.cat([slot, self.box[units + self.row[ego_vehicle]]])
        at, piece = torch.cat([at, ego_link + len(reader)]), torch.cat([piece, ego_piece])
        reader, other = torch.cat([reader, self.unit[sees]]), torch.cat([other, units + self.row[sees]])

        level = network.level[self.rail]
        lane_slots = (self.slot_number < self.slots[self.slot_actor] - 1).nonzero()[:, 0]
        position = torch.empty_like(level)
        found = []
        for height in range(int(level.max()) + 1 if units else 0):
            mine = (level == height).nonzero()[:, 0]
            position[mine] = torch.arange(len(mine), device=mine.device)
            of_level = level[reader] == height
            renumbered = of_level.cumsum(0) - 1
            kept = of_level[at]
            lanes = lane_slots[level[self.slot_actor[lane_slots]] == height]
            owner = self.slot_actor[lanes]
            found.append(
                Level(
                    mine,
                    position[reader[of_level]],
                    other[of_level],
                    renumbered[at[kept]],
                    position[reader[at[kept]]],
                    network.pieces.take(piece[kept]),
                    slot[kept],
                    lanes,
                    position[owner],
                    network.pieces.take(network.first_reached[self.rail[owner]] + self.slot_number[lanes]),
                )
            )
        return found
