"""Vehicles on rails, each behind the nearest actor in its way.

docs/navsim_score_scenes.md §10; officially navsim_idm_agent_manager.py, and of nuPlan idm_agent.py. Independent
vehicles decide at once. Rectangles approximate the official polygons to millimeters.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from driving_scenes.vehicle import LENGTH, WIDTH, State
from navsim_score.geometry import rectangles
from navsim_score.geometry.ranges import expand
from navsim_score.simulation.timing import DT, STEPS
from navsim_score.traffic.idm.model import HEADWAY, TRAFFIC_RADIUS, next_speed
from navsim_score.traffic.idm.schedule import Level, Schedule


class Vehicles(NamedTuple):
    """V vehicles on rails, of R rows, over 41 steps."""

    row: Tensor  # [V] int64, ascending
    rail: Tensor  # [V] int64
    poses: Tensor  # [V, 41, 3]
    present: Tensor  # [V, 41] bool, False once a vehicle is too far from the ego
    speeds: Tensor  # [V, 41] m/s


class Following:
    """Drives R rows' units among egos ``[R, 41, 11]``; units, actors, slots: see `Schedule`."""

    def __init__(self, schedule: Schedule) -> None:
        network = schedule.network
        states = schedule.states
        self.schedule = schedule
        self.network = network
        self.states = states
        self.rail = schedule.rail
        self.progress = network.progress[self.rail]
        self.speed = network.speed[self.rail]
        self.target = network.target[self.rail]
        self.end = network.end(self.rail)
        self.last_begin = network.last_begin(self.rail)
        self.size = network.size[self.rail]
        self.pose = network.pose_at(self.rail, self.progress)
        self.present = torch.ones(len(self.rail), dtype=torch.bool, device=states.device)
        # At first, a vehicle occupies only its box; later also the part of its lane within its headway.
        self.rectangle = states.new_zeros(len(schedule.slot_actor), rectangles.COLUMNS)
        self.rectangle[schedule.box[: len(self.rail)]] = rectangles.from_boxes(network.snapped[self.rail], self.size)
        self.used = torch.zeros(len(schedule.slot_actor), dtype=torch.bool, device=states.device)
        self.used[schedule.box] = True

    def run(self) -> Vehicles:
        """Drive for 4 s, reacting to the ego's previous step."""
        # By step.
        poses = [self.pose]
        present = [self.present]
        speeds = [self.speed.clone()]
        for step in range(STEPS - 1):
            self._place_ego(step)
            for level in self.schedule.levels:
                self._decide_level(level, step)
            poses.append(self.pose)
            present.append(self.present)
            speeds.append(self.speed.clone())
        # Vehicles that share a unit drive alike.
        unit = self.schedule.unit
        return Vehicles(
            row=self.schedule.row,
            rail=self.rail[unit],
            poses=torch.stack(poses, 1)[unit],
            present=torch.stack(present, 1)[unit],
            speeds=torch.stack(speeds, 1)[unit],
        )

    def _place_ego(self, step: int) -> None:
        ego = self.states[:, step, : State.YAW + 1]
        units = len(self.rail)
        # The official code puts the center of the ego's box at the rear axle.
        self.rectangle[self.schedule.box[units:]] = rectangles.from_boxes(ego, ego.new_tensor([LENGTH, WIDTH]))
        far = (self.pose[:, :2] - ego[self.schedule.unit_row, :2]).norm(dim=1) > TRAFFIC_RADIUS
        gone = far & self.schedule.alone & self.present
        if gone.any():
            self.present = self.present & ~gone
            self.used[gone.repeat_interleave(self.schedule.slots[:units]).nonzero()[:, 0]] = False

    def _decide_level(self, level: Level, step: int) -> None:
        units = level.units
        speed = self.speed[units]
        progress = self.progress[units]
        link, apart = self._in_the_way(level)
        reader = level.reader[link]
        # Without a leader, the end of the lane stands in for it.
        gap = self.end[units] - progress - self.size[units, 0] / 2
        leader_speed = torch.zeros_like(speed)
        if len(link):
            nearest = self._nearest_actors(reader, level.other[link], apart, len(units))
            reader = reader[nearest]
            link = link[nearest]
            gap[reader] = apart[nearest]
            leader_speed[reader] = self._speed_along(units[reader], level.other[link], step)
        self.progress[units] = progress + DT * speed
        self.speed[units] = next_speed(speed, self.target[units], gap, leader_speed)
        self._move_slots(level)

    def _in_the_way(self, level: Level) -> tuple[Tensor, Tensor]:
        """Indices of the level's links to actors on the reader's lane ahead, and the distances of reader and actor."""
        units = level.units
        progress = self.progress[units]
        end = self.end[units]
        begin = torch.where(progress < end, progress, self.last_begin[units])[level.place]
        corridor, ahead = level.piece.between(begin, torch.full_like(begin, torch.inf))
        hit = ahead & self.used[level.slot] & rectangles.touch(corridor, self.rectangle[level.slot])
        met = torch.bincount(level.link[hit], minlength=len(level.reader)) > 0
        link = (met & self.present[units[level.reader]]).nonzero()[:, 0]
        if not len(link):
            return link, begin[:0]
        return link, self._distances_between(units[level.reader[link]], level.other[link])

    def _distances_between(self, actor: Tensor, other: Tensor) -> Tensor:
        """Shortest distances ``[l]`` in meters between used slots of `actor` and `other` ``[l]``."""
        pair, slot = self._used_slots(actor)
        at, other_slot = self._used_slots(other[pair])
        pair = pair[at]
        a = self.rectangle[slot[at]]
        b = self.rectangle[other_slot]
        # Skip pairs of rectangles that are certainly not the nearest pair.
        between = torch.hypot(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1])
        radius = torch.hypot(a[:, 4], a[:, 5]) + torch.hypot(b[:, 4], b[:, 5])
        nearest = between.new_full((len(actor),), torch.inf)
        bound = nearest.scatter_reduce(0, pair, between, "amin")
        close = (between - radius <= bound[pair]).nonzero()[:, 0]
        return nearest.scatter_reduce(0, pair[close], rectangles.distance(a[close], b[close]), "amin")

    def _used_slots(self, actor: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs of a position in `actor` and a used slot of this actor."""
        at, slot = expand(self.schedule.slots[actor], self.schedule.first_slot[actor])
        used = self.used[slot].nonzero()[:, 0]
        return at[used], slot[used]

    def _nearest_actors(self, reader: Tensor, other: Tensor, apart: Tensor, readers: int) -> Tensor:
        """Positions in `other` of each reader's nearest actor; among equally near actors, the lowest in y.

        The official tree keeps up to ten polygons in this order.
        """
        least = apart.new_full((readers,), torch.inf).scatter_reduce(0, reader, apart, "amin")
        best = (apart == least[reader]).nonzero()[:, 0]
        if len(best) == len(reader.unique()):
            return best
        height = self._center_heights(other[best])
        lowest = height.new_full((readers,), torch.inf).scatter_reduce(0, reader[best], height, "amin")
        best = best[height == lowest[reader[best]]]
        position = torch.full((readers,), len(reader), device=reader.device)
        position = position.scatter_reduce(0, reader[best], best, "amin")
        return position[position < len(reader)]

    def _center_heights(self, actor: Tensor) -> Tensor:
        """Twice the center's y ``[n]`` of each actor's bounds."""
        at, slot = self._used_slots(actor)
        rectangle = self.rectangle[slot]
        extent = rectangles.vertical_extent(rectangle)
        edge = rectangle.new_full((len(actor),), torch.inf)
        low = edge.scatter_reduce(0, at, rectangle[:, 1] - extent, "amin")
        return low + (-edge).scatter_reduce(0, at, rectangle[:, 1] + extent, "amax")

    def _speed_along(self, unit: Tensor, other: Tensor, step: int) -> Tensor:
        ego = self.states[:, step]
        speed = torch.cat([self.speed, torch.hypot(ego[:, State.VX], ego[:, State.VY])])
        yaw = torch.cat([self.pose[:, 2], ego[:, State.YAW]])
        return speed[other] * (yaw[other] - self.pose[unit, 2]).cos()

    def _move_slots(self, level: Level) -> None:
        """Move the level's slots: boxes, and lanes within the headway."""
        units = level.units
        progress = self.progress[units]
        end = self.end[units]
        last_begin = self.last_begin[units]
        half = self.size[units, 0] / 2
        self.pose = self.pose.index_copy(0, units, self.network.pose_at(self.rail[units], progress))
        begin = torch.where(progress - half < end, progress - half, last_begin)
        ahead = progress + half + HEADWAY * self.speed[units]
        part, exists = level.lane_piece.between(begin[level.lane_unit], ahead[level.lane_unit])
        self.rectangle[level.lanes] = part
        self.used[level.lanes] = exists & self.present[units][level.lane_unit]
        self.rectangle[self.schedule.box[units]] = rectangles.from_boxes(self.pose[units], self.size[units])
