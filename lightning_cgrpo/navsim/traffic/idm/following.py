"""Vehicles that drive along rails, each after what is nearest in its way.

See docs/navsim_score.md §10; officially navsim_idm_agent_manager.py, and of nuPlan idm_agent.py. The official code lets
vehicles decide one after the other; here those that don't depend on each other decide at once, in all rows. Where it
compares polygons, here are rectangles along straight pieces of the lanes: outlines may differ by millimeters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry import rectangles
from lightning_cgrpo.navsim.geometry.boxes import expand
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.navsim.traffic.idm.model import HEADWAY, next_speed
from lightning_cgrpo.navsim.traffic.idm.network import Network
from lightning_cgrpo.navsim.traffic.idm.rails import RADIUS
from lightning_cgrpo.navsim.traffic.idm.schedule import Level, Schedule
from lightning_cgrpo.scenes.vehicle import LENGTH, WIDTH, State, centers


@dataclass(frozen=True, eq=False)
class Vehicles:
    """The vehicles on rails of R rows, V in all, over 41 steps.

    Args:
        row: ``[V]`` int64, ascending.
        rail: ``[V]`` int64.
        poses: ``[V, 41, 3]``.
        present: ``[V, 41]`` bool, False from when they are too far from the ego.
        speeds: ``[V, 41]``.
    """

    row: Tensor
    rail: Tensor
    poses: Tensor
    present: Tensor
    speeds: Tensor


class Following:
    """The vehicles of R rows and their egos, see `Schedule` for what they are made of.

    Args:
        network: rails.
        states: ``[R, 41, 11]`` of the egos.
        scene: ``[R]`` int64.
        ego_box_at_center: see `Reactive`.
    """

    def __init__(self, network: Network, states: Tensor, scene: Tensor, *, ego_box_at_center: bool = False) -> None:
        self.network = network
        self.states = states
        self.ego_box_at_center = ego_box_at_center
        self.schedule = schedule = Schedule(network, states, scene)
        self.rail = schedule.rail
        self.progress = network.progress[self.rail]
        self.speed = network.speed[self.rail]
        self.target = network.target[self.rail]
        self.end, self.last_begin = network.end(self.rail), network.last_begin(self.rail)
        self.size = network.size[self.rail]
        self.pose = network.pose_at(self.rail, self.progress)
        self.present = torch.ones(len(self.rail), dtype=torch.bool, device=states.device)
        # At first a vehicle occupies its box, later also the part of its lane that it will soon be on.
        self.rectangle = states.new_zeros(len(schedule.slot_actor), rectangles.COLUMNS)
        self.rectangle[schedule.box[: len(self.rail)]] = rectangles.from_boxes(network.snapped[self.rail], self.size)
        self.used = torch.zeros(len(schedule.slot_actor), dtype=torch.bool, device=states.device)
        self.used[schedule.box] = True

    def run(self) -> Vehicles:
        """Drive for 4 s, minding in each step where the ego was in the step before."""
        poses, present, speeds = [self.pose], [self.present], [self.speed.clone()]
        for step in range(STEPS - 1):
            self._place_ego(step)
            for level in self.schedule.levels:
                self._decide(level, step)
            poses.append(self.pose)
            present.append(self.present)
            speeds.append(self.speed.clone())
        unit = self.schedule.unit
        stacked = (torch.stack(values, 1)[unit] for values in (poses, present, speeds))
        return Vehicles(self.schedule.row, self.rail[unit], *stacked)

    def _place_ego(self, step: int) -> None:
        """Officially the ego's box is put with its center where the rear axle is."""
        ego = self.states[:, step, : State.YAW + 1]
        units = len(self.rail)
        box = torch.cat([centers(ego), ego[:, State.YAW :]], 1) if self.ego_box_at_center else ego
        self.rectangle[self.schedule.box[units:]] = rectangles.from_boxes(box, box.new_tensor([LENGTH, WIDTH]))
        far = (self.pose[:, :2] - ego[self.schedule.unit_row, :2]).norm(dim=1) > RADIUS
        gone = far & self.schedule.own & self.present
        if gone.any():
            self.present = self.present & ~gone
            self.used[gone.repeat_interleave(self.schedule.slots[:units]).nonzero()[:, 0]] = False

    def _decide(self, level: Level, step: int) -> None:
        units = level.units
        speed, progress = self.speed[units], self.progress[units]
        link, apart = self._in_the_way(level)
        reader = level.reader[link]
        gap = self.end[units] - progress - self.size[units, 0] / 2
        leader_speed = torch.zeros_like(speed)
        if len(link):
            nearest = self._nearest(reader, level.other[link], apart, len(units))
            reader, link = reader[nearest], link[nearest]
            gap[reader] = apart[nearest]
            leader_speed[reader] = self._speed_along(units[reader], level.other[link], step)
        self.progress[units] = progress + DT * speed
        self.speed[units] = next_speed(speed, self.target[units], gap, leader_speed)
        self._occupy(level)

    def _in_the_way(self, level: Level) -> tuple[Tensor, Tensor]:
        """Links whose other actor is on the reader's lane ahead, and how far it is from what the reader occupies."""
        units = level.units
        progress, end = self.progress[units], self.end[units]
        begin = torch.where(progress < end, progress, self.last_begin[units])[level.place]
        corridor, ahead = level.piece.between(begin, torch.full_like(begin, torch.inf))
        hit = ahead & self.used[level.slot] & rectangles.touch(corridor, self.rectangle[level.slot])
        met = torch.bincount(level.link[hit], minlength=len(level.reader)) > 0
        link = (met & self.present[units[level.reader]]).nonzero()[:, 0]
        if not len(link):
            return link, begin[:0]
        return link, self._apart(units[level.reader[link]], level.other[link])

    def _apart(self, one: Tensor, other: Tensor) -> Tensor:
        """Meters ``[l]`` between what actors occupy."""
        pair, number = expand(self.schedule.slots[one])
        slot = self.schedule.first_slot[one][pair] + number
        used = self.used[slot].nonzero()[:, 0]
        pair, slot = pair[used], slot[used]
        at, number = expand(self.schedule.slots[other][pair])
        pair, slot, other_slot = pair[at], slot[at], self.schedule.first_slot[other][pair[at]] + number
        used = self.used[other_slot].nonzero()[:, 0]
        pair, a, b = pair[used], self.rectangle[slot[used]], self.rectangle[other_slot[used]]
        # Only rectangles that aren't further than others for sure.
        between = torch.hypot(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1])
        radius = torch.hypot(a[:, 4], a[:, 5]) + torch.hypot(b[:, 4], b[:, 5])
        nearest = between.new_full((len(one),), torch.inf)
        bound = nearest.scatter_reduce(0, pair, between, "amin")
        close = (between - radius <= bound[pair]).nonzero()[:, 0]
        return nearest.scatter_reduce(0, pair[close], rectangles.distance(a[close], b[close]), "amin")

    def _nearest(self, reader: Tensor, other: Tensor, apart: Tensor, readers: int) -> Tensor:
        """Positions of the nearest of each reader's; of equally near ones (those that overlap it) the one lowest in y.

        That is the order in which the official tree keeps up to ten polygons.
        """
        least = apart.new_full((readers,), torch.inf).scatter_reduce(0, reader, apart, "amin")
        best = (apart == least[reader]).nonzero()[:, 0]
        if len(best) == len(reader.unique()):
            return best
        height = self._height(other[best])
        lowest = height.new_full((readers,), torch.inf).scatter_reduce(0, reader[best], height, "amin")
        best = best[height == lowest[reader[best]]]
        position = torch.full((readers,), len(reader), device=reader.device)
        position = position.scatter_reduce(0, reader[best], best, "amin")
        return position[position < len(reader)]

    def _height(self, actor: Tensor) -> Tensor:
        """Twice the y of the middles of actors' bounding boxes, ``[n]``."""
        at, number = expand(self.schedule.slots[actor])
        slot = self.schedule.first_slot[actor][at] + number
        used = self.used[slot].nonzero()[:, 0]
        at, rectangle = at[used], self.rectangle[slot[used]]
        extent = rectangles.vertical_extent(rectangle)
        edge = rectangle.new_full((len(actor),), torch.inf)
        low = edge.scatter_reduce(0, at, rectangle[:, 1] - extent, "amin")
        return low + (-edge).scatter_reduce(0, at, rectangle[:, 1] + extent, "amax")

    def _speed_along(self, unit: Tensor, other: Tensor, step: int) -> Tensor:
        """Speeds of actors in the direction of vehicles."""
        ego = self.states[:, step]
        speed = torch.cat([self.speed, torch.hypot(ego[:, State.VX], ego[:, State.VY])])
        yaw = torch.cat([self.pose[:, 2], ego[:, State.YAW]])
        return speed[other] * (yaw[other] - self.pose[unit, 2]).cos()

    def _occupy(self, level: Level) -> None:
        """Move what vehicles occupy to where they are, and along their lanes for the headway."""
        units = level.units
        progress, end, last_begin = self.progress[units], self.end[units], self.last_begin[units]
        half = self.size[units, 0] / 2
        self.pose = self.pose.index_copy(0, units, self.network.pose_at(self.rail[units], progress))
        begin = torch.where(progress - half < end, progress - half, last_begin)
        ahead = progress + half + HEADWAY * self.speed[units]
        part, exists = level.lane_piece.between(begin[level.lane_unit], ahead[level.lane_unit])
        self.rectangle[level.lanes] = part
        self.used[level.lanes] = exists & self.present[units][level.lane_unit]
        self.rectangle[self.schedule.box[units]] = rectangles.from_boxes(self.pose[units], self.size[units])
