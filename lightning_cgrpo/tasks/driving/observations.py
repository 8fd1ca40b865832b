"""Short observations of a scene, as thoughts before a trajectory.

Observations make a tiny model look at its images, because past positions explain most of the waypoints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from driving_scenes.scene import Scene
from lightning_cgrpo.tasks.driving.answers import format_number
from lightning_cgrpo.tasks.driving.thoughts import Thoughts
from navsim_score.route.lane_ahead import LaneAhead, lane_ahead

LANE_POINTS = (10.0, 20.0, 30.0)
"""Meters along the lane."""
IN_THE_WAY = 1.8
"""Meters between an agent's center and the middle of the lane."""
IN_SIGHT = 40.0
"""Meters along the lane."""


class Observations(Thoughts):
    """The lane along the route, the nearest agent in it, and its red light.

    Example: ``Lane: 10.0 0.1, 19.8 1.2, 29.1 4.0. Ahead: 12. Light: red 17.`` gives the lane's x, y in the ego's frame
    after 10, 20 and 30 m, then meters along the lane to the agent and the light. ``none`` means nothing within 40 m.
    """

    def __call__(self, scene: Scene) -> str:
        """Raises:
        SceneError: there is no route.
        """
        ahead = lane_ahead(scene)
        start = float(ahead.path.project(ahead.road.position))
        agent = nearest_agent(scene, ahead, start)
        described = "none" if agent is None else f"{agent.distance:.0f}"
        return f"{lane_text(scene, ahead, start)} Ahead: {described}. {light_text(scene, ahead, start)}"


class Near(NamedTuple):
    """An agent on the lane ahead."""

    token: str
    distance: float  # meters along the lane


def lane_text(scene: Scene, ahead: LaneAhead, start: float) -> str:
    """The lane's points, ahead of `start` meters along it."""
    x, y, yaw = scene.ego.poses[-1].tolist()
    points = ahead.path.at(start + np.array(LANE_POINTS))[:, :2] - [x, y]
    # Rotate into the ego's frame.
    points = points @ np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    pairs = [f"{format_number(forward)} {format_number(left)}" for forward, left in points.tolist()]
    return f"Lane: {', '.join(pairs)}."


def nearest_agent(scene: Scene, ahead: LaneAhead, start: float) -> Near | None:
    """The nearest agent whose center is in the lane."""
    agents = scene.agents
    if not len(agents.times):
        return None
    # 1. The agents that are seen now.
    now = int(np.abs(agents.times.numpy()).argmin())
    rows = np.flatnonzero(agents.seen[:, now].numpy())
    places = agents.states[rows, now, :2].numpy()  # [agents, 2]
    if not len(places):
        return None
    # 2. Their distances along the lane; infinite beside the lane and behind the ego.
    along = ahead.path.project(places)
    offsets = ahead.path.at(along)[:, :2] - places
    beside = np.hypot(offsets[:, 0], offsets[:, 1])
    distances = np.where((beside < IN_THE_WAY) & (along > start), along - start, np.inf)
    row = int(distances.argmin())
    if distances[row] >= IN_SIGHT:
        return None
    return Near(agents.tokens[rows[row]], float(distances[row]))


def light_text(scene: Scene, ahead: LaneAhead, start: float) -> str:
    """The nearest red light."""
    return f"Light: {_red_light(scene, ahead, start)}."


def _red_light(scene: Scene, ahead: LaneAhead, start: float) -> str:
    now = int(np.searchsorted(scene.lights.times.numpy(), 1e-6)) - 1
    begin = -start  # of a lane, in meters from the ego
    for lane in ahead.lanes:
        if 0 < begin < IN_SIGHT and now >= 0 and bool(scene.lights.red[now, lane]):
            return f"red {begin:.0f}"
        begin += ahead.road.length(lane)
    return "none"
