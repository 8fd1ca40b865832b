"""A planner's view of a scene."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from driving_scenes.scene import MOVING_TYPES, Scene
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.samplers.chain import PlannerInputs
from lightning_cgrpo.tasks.driving.drive_numbers import SECONDS, drive
from lightning_cgrpo.tasks.driving.prompts import INTENTS, intent
from navsim_score.batch.surfaces import red_at_steps
from navsim_score.route.lane_ahead import lane_ahead
from navsim_score.simulation.interpolation import in_ego

LANE_POINTS = (3.0, 8.0, 15.0, 25.0, 40.0, 60.0)
"""Meters along the lane ahead of the points in a context."""
AGENTS, AGENT_NUMBERS = 8, 8
NEAR = 60.0
"""Meters within which agents are in a context."""
CONTEXT = 9 + 3 * len(LANE_POINTS) + AGENTS * AGENT_NUMBERS
"""Numbers of a context: ego, lane ahead, agents."""


class DrivingInputs(PlannerInputs):
    """Contexts of `CONTEXT` numbers from true maps and agents; answers are `SECONDS` accelerations and curvatures.

    A context has speed, accelerations, yaw rate, intent, speed limit and whether a light ahead is red; poses of the
    lane ahead; and of the nearest agents position, velocity, size, and whether they move. A planner with cameras brings
    inputs of its own.

    Rollouts get ``info["poses"]`` ``[B, G, 16, 3]`` for `TrajectoryTask`.
    """

    size = 2 * SECONDS

    def context(self, prompts: PromptGroups) -> Tensor:
        scenes: Sequence[Scene] = prompts.column("scene", "DrivingInputs")
        rows = [scene_context(scene) for scene in scenes]
        stacked = torch.stack(rows) if rows else torch.zeros(0, CONTEXT)
        return stacked.to(prompts.index.device)

    def answers(self, prompts: PromptGroups, numbers: Tensor) -> Mapping[str, Tensor]:
        scenes: Sequence[Scene] = prompts.column("scene", "DrivingInputs")
        speeds = torch.tensor([float(scene.ego.velocities[-1, 0]) for scene in scenes], dtype=torch.float64)
        return {"poses": drive(numbers, speeds.to(numbers.device)[:, None])}


def scene_context(scene: Scene) -> Tensor:
    """``[CONTEXT]`` of what is known at t = 0."""
    # 1. The ego.
    ego = scene.ego
    pose = ego.poses[-1]
    yaw_rate = 0.0
    if len(ego.times) > 1:
        turned = in_ego(ego.poses[-2], pose)[2]
        yaw_rate = float(turned / (ego.times[-1] - ego.times[-2]))
    # 2. The lane ahead, its speed limit and its lights.
    ahead = lane_ahead(scene)
    start = float(ahead.path.project(ahead.road.position))
    lane = torch.from_numpy(ahead.path.at(start + np.array(LANE_POINTS)))
    points = in_ego(pose, lane) / torch.tensor([20.0, 20.0, 1.0], dtype=torch.float64)
    limit = float(scene.map.lanes.speed_limit[ahead.lanes[0]])
    if math.isnan(limit):
        limit = 15.0
    red = red_at_steps(scene.lights)[0]
    is_red = any(bool(red[row]) for row in ahead.lanes[:3])
    # 3. All numbers, in units that make them about 1.
    command = intent(scene)
    commands = [float(command == name) for name in INTENTS]
    numbers = [
        float(ego.velocities[-1, 0]) / 10,
        *(ego.accelerations[-1] / 3).tolist(),
        yaw_rate,
        *commands,
        limit / 10,
        float(is_red),
    ]
    of_ego = torch.tensor(numbers, dtype=torch.float64)
    return torch.cat([of_ego, points.flatten(), _agent_numbers(scene)]).float()


def _agent_numbers(scene: Scene) -> Tensor:
    """``[AGENTS * AGENT_NUMBERS]`` of the nearest agents that are seen at t = 0; 0 for missing ones."""
    agents = scene.agents
    pose = scene.ego.poses[-1]
    table = torch.zeros(AGENTS, AGENT_NUMBERS, dtype=torch.float64)
    now = agents.times.abs() < 1e-3
    if not now.any():
        return table.flatten()
    # 1. Places and velocities of the agents that are seen, in the ego's frame.
    column = int(now.nonzero()[0])
    seen = agents.seen[:, column]
    states = agents.states[seen, column]
    places = in_ego(pose, states[:, :3])
    cos, sin = pose[2].cos(), pose[2].sin()
    forward = cos * states[:, 3] + sin * states[:, 4]
    left = cos * states[:, 4] - sin * states[:, 3]
    moves = (agents.types[seen] < MOVING_TYPES).double()
    size = agents.sizes[seen, :2]
    columns = [places[:, 0] / 20, places[:, 1] / 20, forward / 10, left / 10, size[:, 0] / 5, size[:, 1] / 2, moves]
    is_agent = torch.ones_like(moves)  # 0 in rows without an agent
    rows = torch.stack([*columns, is_agent], 1)
    # 2. The nearest of them.
    distances = places[:, :2].norm(dim=1)
    nearest = distances.argsort()[:AGENTS]
    nearest = nearest[distances[nearest] < NEAR]
    table[: len(nearest)] = rows[nearest]
    return table.flatten()
