"""What a driver sees, in few words and numbers: thoughts that demonstrations put before a trajectory.

A tiny model that learns from scratch hardly looks at its images as long as only waypoints are asked of it: the past
positions, as text, explain most of those. Saying what is seen first makes it look.
"""

from __future__ import annotations

import numpy as np

from lightning_cgrpo.navsim.geometry.lane_path import LanePath
from lightning_cgrpo.navsim.route.lane_ahead import lane_ahead
from lightning_cgrpo.navsim.route.road import Road
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.tasks.driving.answers import number
from lightning_cgrpo.tasks.driving.thoughts import Thoughts

LANE_POINTS = (10.0, 20.0, 30.0)
"""Meters along the lane."""
IN_THE_WAY = 1.8
"""Meters to the side of the lane's middle, of an agent's center."""
IN_SIGHT = 40.0
"""Meters along the lane: what is farther away isn't told."""


class Observations(Thoughts):
    """The lane that leads where the intent says, who is in it, and its light.

    Example: ``Lane: 10.0 0.1, 19.8 1.2, 29.1 4.0. Ahead: 12. Light: red 17.`` says where the lane is after 10, 20 and
    30 m (x, y in the ego's frame), how far away along it the center of the nearest agent is, and its first red light;
    ``none`` where there is no such thing within 40 m.
    """

    def __call__(self, scene: Scene) -> str:
        """The text about a scene at t = 0, of what its images show.

        Raises:
            SceneError: there is no route.
        """
        ahead = lane_ahead(scene)
        road, path = ahead.road, ahead.path
        start = float(path.project(road.position))
        x, y, yaw = scene.ego.poses[-1].tolist()
        points = path.at(start + np.array(LANE_POINTS))[:, :2] - [x, y]
        points = points @ np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        lane = ", ".join(f"{number(ahead)} {number(left)}" for ahead, left in points.tolist())
        return f"Lane: {lane}. Ahead: {_ahead(scene, path, start)}. Light: {_light(scene, road, ahead.lanes, start)}."


def _ahead(scene: Scene, path: LanePath, start: float) -> str:
    agents = scene.agents
    now = int(np.abs(agents.times.numpy()).argmin())
    places = agents.states[agents.seen[:, now], now, :2].numpy()
    if not len(places):
        return "none"
    along = path.project(places)
    beside = np.hypot(*(path.at(along)[:, :2] - places).T)
    distances = (along - start)[(beside < IN_THE_WAY) & (along > start)]
    return f"{distances.min():.0f}" if distances.min(initial=np.inf) < IN_SIGHT else "none"


def _light(scene: Scene, road: Road, lanes: list[int], start: float) -> str:
    now = int(np.searchsorted(scene.lights.times.numpy(), 1e-6)) - 1
    begin = -start
    for lane in lanes:
        if 0 < begin < IN_SIGHT and now >= 0 and bool(scene.lights.red[now, lane]):
            return f"red {begin:.0f}"
        begin += road.length(lane)
    return "none"
