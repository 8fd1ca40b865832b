"""Agents near the ego: collisions at fault (NC), and time to collision (TTC); docs/navsim_score.md §6, §7."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from driving_scenes.scene import MOVING_TYPES
from driving_scenes.vehicle import LENGTH, WIDTH
from navsim_score.geometry.boxes import (
    SLACK,
    bounds_touch,
    box_corners,
    boxes_touch,
    dot,
    grown,
    segments_touch_boxes,
)
from navsim_score.official_constants import (
    AHEAD,
    BEHIND,
    LOOK_AHEAD_STEPS,
    STATIC_OBJECT_SCORE,
    STOPPED_SPEED,
    TTC_STOPPED_SPEED,
)
from navsim_score.scoring.areas import EgoAreas
from navsim_score.scoring.motion import Motion, Outcome
from navsim_score.simulation.timing import DT
from navsim_score.traffic.traffic import TrafficRollouts

EGO_RADIUS = math.hypot(LENGTH, WIDTH) / 2 + SLACK


@dataclass(frozen=True, eq=False)
class Encounters:
    """M pairs of row and agent that may touch."""

    row: Tensor  # [M] int64
    poses: Tensor  # [M, T, 3] of the agent
    present: Tensor  # [M, T] bool
    sizes: Tensor  # [M, 2]
    types: Tensor  # [M]
    first_speed: Tensor  # [M] by which an agent counts as stopped
    radius: Tensor  # [M] distance of centers beyond which boxes cannot touch

    @classmethod
    def of(cls, motion: Motion, traffic: TrafficRollouts) -> Encounters:
        """Pairs whose bounds over time touch, the ego's grown by a second at its highest speed."""
        reach = motion.speeds.amax(1, keepdim=True) + SLACK  # time to collision looks 0.9 s ahead
        swept = grown(motion.bounds, reach)
        half = traffic.sizes.norm(dim=-1) / 2
        positions = traffic.poses[..., :2]
        absent = ~traffic.present[..., None]
        low = positions.masked_fill(absent, math.inf).amin(2) - half[..., None]
        high = positions.masked_fill(absent, -math.inf).amax(2) + half[..., None]
        near = bounds_touch(swept[:, None], torch.cat([low, high], -1)[traffic.of_row])
        row, agent = near.nonzero().unbind(1)
        at = (traffic.of_row[row], agent)
        return cls(
            row=row,
            poses=traffic.poses[at],
            present=traffic.present[at],
            sizes=traffic.sizes[at],
            types=traffic.types[at],
            first_speed=traffic.first_speed[at],
            radius=half[at] + EGO_RADIUS,
        )

    def boxes(self, pair: Tensor, step: Tensor) -> Tensor:
        """Corners ``[n, 4, 2]`` of n pairs' agents."""
        return box_corners(self.poses[pair, step], self.sizes[pair])

    def angles(self, pair: Tensor, step: Tensor, pose: Tensor, direction: Tensor) -> Tensor:
        """``[n]`` in [0, pi] between the ego's direction and the agent's center, from the rear axle."""
        away = self.poses[pair, step, :2] - pose[:, :2]
        # Clamped, because officially rounding gives NaN for some agents straight ahead.
        cosine: Tensor = dot(direction, away) / away.norm(dim=1)
        return cosine.clamp(-1, 1).acos()

    def not_excused(self, pair: Tensor, order: Tensor, violating: Tensor) -> Tensor:
        """``[n]`` bool: contacts that violate before their pair's first non-violating contact; later ones are ignored.

        ``order [n]`` int64 sorts a pair's contacts in time.
        """
        excused = torch.full((len(self.row),), torch.iinfo(order.dtype).max, device=order.device)
        excused.scatter_reduce_(0, pair[~violating], order[~violating], "amin")
        return violating & (order < excused[pair])

    def outcome(self, pair: Tensor, step: Tensor, value: Tensor, rows: int) -> Outcome:
        """Each row's least value among its violating contacts, 1 without any, and the step of its first contact."""
        row = self.row[pair]
        never = torch.iinfo(step.dtype).max
        values = value.new_ones(rows).scatter_reduce_(0, row, value, "amin")
        steps = step.new_full((rows,), never).scatter_reduce_(0, row, step, "amin")
        return Outcome(values, torch.where(steps == never, -1, steps))


def no_at_fault_collisions(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """NC: 0 for an at-fault collision with a vehicle, pedestrian or bicycle, 0.5 with other objects only.

    A moving ego is at fault if the agent stands still. Unless the agent is behind, a moving ego is also at fault when
    its front bumper touches, or in several lanes, or off the road. After a contact without fault the agent is ignored.
    """
    # Steps at which a pair is close enough to touch.
    steps = motion.states.shape[1]
    apart = motion.centers[encounters.row] - encounters.poses[:, :steps, :2]
    close = (dot(apart, apart) <= encounters.radius[:, None] ** 2) & encounters.present[:, :steps]
    pair, step = close.nonzero().unbind(1)
    # Of these, contacts.
    ego = motion.corners[encounters.row[pair], step]
    touching = boxes_touch(ego, encounters.boxes(pair, step))
    pair = pair[touching]
    step = step[touching]
    ego = ego[touching]

    # The fault of each contact.
    at = (encounters.row[pair], step)
    behind = encounters.angles(pair, step, motion.states[at], motion.directions[at]) > BEHIND
    front = segments_touch_boxes(ego[:, 0], ego[:, 3], encounters.boxes(pair, step))
    static = encounters.types[pair] >= MOVING_TYPES
    stopped = static | (encounters.first_speed[pair] <= STOPPED_SPEED)
    unsafe = (areas.multiple_lanes | areas.non_drivable)[at]
    at_fault = (motion.speeds[at] > STOPPED_SPEED) & (stopped | (~behind & (front | unsafe)))
    at_fault = encounters.not_excused(pair, step, at_fault)
    value = torch.where(static[at_fault], STATIC_OBJECT_SCORE, 0).to(motion.states)
    return encounters.outcome(pair[at_fault], step[at_fault], value, len(motion))


def time_to_collision_within_bound(motion: Motion, areas: EgoAreas, encounters: Encounters) -> Outcome:
    """TTC: 0 if the ego, moved on by up to 0.9 s at constant velocity, touches an agent ahead at its pose then.

    An agent beside the ego counts too, while the ego is in several lanes, off the road or in an intersection. After any
    other contact the agent is ignored. The last steps are left out if agents are not known 0.9 s later.
    """
    # How far the ego moves from each step until each look, and the agents' step then.
    steps = min(motion.states.shape[1], encounters.poses.shape[1] - LOOK_AHEAD_STEPS[-1])
    look = motion.states.new_tensor(LOOK_AHEAD_STEPS) * DT
    travel = motion.directions[:, :steps] * motion.speeds[:, :steps, None]
    moved = travel[:, :, None] * look[:, None]  # [R, 32, 4, 2]
    then = torch.arange(steps, device=look.device)[:, None] + torch.tensor(LOOK_AHEAD_STEPS, device=look.device)
    # Steps and looks at which a pair is close enough to touch.
    apart = (motion.centers[:, :steps, None] + moved)[encounters.row] - encounters.poses[:, then, :2]
    close = (dot(apart, apart) <= encounters.radius[:, None, None] ** 2) & encounters.present[:, then]
    close &= (motion.speeds[:, :steps] >= TTC_STOPPED_SPEED)[encounters.row][..., None]
    pair, step, ahead = close.nonzero().unbind(1)
    # Of these, contacts.
    row = encounters.row[pair]
    ego = motion.corners[row, step] + moved[row, step, ahead][:, None]
    touching = boxes_touch(ego, encounters.boxes(pair, then[step, ahead]))
    pair = pair[touching]
    step = step[touching]
    ahead = ahead[touching]
    row = row[touching]

    # Contacts ahead violate, and beside the ego where it is unsafe.
    at = (row, step)
    angle = encounters.angles(pair, then[step, ahead], motion.states[at], motion.directions[at])
    unsafe = (areas.multiple_lanes | areas.non_drivable | areas.rear_in_intersection)[at]
    violating = (angle < AHEAD) | (unsafe & ~(angle > BEHIND))
    violating = encounters.not_excused(pair, step * len(LOOK_AHEAD_STEPS) + ahead, violating)
    value = motion.states.new_zeros(int(violating.sum()))
    return encounters.outcome(pair[violating], step[violating], value, len(motion))
