"""Observations that name speeds, and agents that enter the lane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from driving_scenes.scene import Scene
from driving_scenes.vehicle import WIDTH
from lightning_cgrpo.tasks.driving.observations import lane_text, light_text
from lightning_cgrpo.tasks.driving.thoughts import Thoughts
from navsim_score.route.lane_ahead import LaneAhead, lane_ahead

MARGIN = 0.5
"""Meters beside the ego's width; an agent nearer to the middle of the lane is in the way."""
REACH = 60.0
"""Meters along the lane."""
TIMES = np.arange(0.0, 4.01, 0.25)
"""Seconds of constant velocity."""


class Noticed(NamedTuple):
    """An agent in the lane, or an agent that enters the lane."""

    token: str
    distance: float  # meters along the lane, now or where it enters
    speed: float  # m/s along the lane
    after: float  # seconds until it enters, 0 if it is in the lane now


class MovingObservations(Thoughts):
    """As `Observations`, with the speed of the agent ahead and the first agent that enters the lane.

    Example: ``Lane: 10.0 0.1, 19.8 1.2, 29.1 4.0. Ahead: 12 3. In: 14 1.2. Light: red 17.`` An agent is 12 m ahead and
    goes 3 m/s along the lane. Another agent, such as a pedestrian or a car of the next lane, will be in the lane in 1.2
    s, 14 m from here, at constant velocity. ``none`` means nothing within 60 m and 4 s, or 40 m for lights.
    """

    def __call__(self, scene: Scene) -> str:
        """Raises:
        SceneError: there is no route.
        """
        ahead = lane_ahead(scene)
        start = float(ahead.path.project(ahead.road.position))
        present, entering = noticed_agents(scene, ahead, start)
        near = "none" if present is None else f"{present.distance:.0f} {max(present.speed, 0.0):.0f}"
        coming = "none" if entering is None else f"{entering.distance:.0f} {entering.after:.1f}"
        return f"{lane_text(scene, ahead, start)} Ahead: {near}. In: {coming}. {light_text(scene, ahead, start)}"


def noticed_agents(scene: Scene, ahead: LaneAhead, start: float) -> tuple[Noticed | None, Noticed | None]:
    """The nearest agent in the lane, and the first agent that enters the lane within 4 s."""
    # 1. The agents that are seen now.
    agents = scene.agents
    if not len(agents.times):
        return None, None
    now = int(np.abs(agents.times.numpy()).argmin())
    rows = np.flatnonzero(agents.seen[:, now].numpy())
    if not len(rows):
        return None, None
    states = agents.states[rows, now].numpy()
    sizes = agents.sizes[rows].numpy()
    # 2. Places at constant velocity [A, T, 2], and the lane's poses beside them [A, T, 3].
    places = states[:, None, :2] + TIMES[:, None] * states[:, None, 3:5]
    along = ahead.path.project(places)
    middle = ahead.path.at(along)
    offsets = places - middle[..., :2]
    beside = np.hypot(offsets[..., 0], offsets[..., 1])
    # 3. Half of the agent's extent across the lane, and whether this leaves room for the ego.
    turned = states[:, None, 2] - middle[..., 2]
    across = np.abs(np.sin(turned)) * sizes[:, :1] / 2 + np.abs(np.cos(turned)) * sizes[:, 1:2] / 2
    distance = along - start
    on_lane = (distance > 0) & (distance < REACH) & (along < ahead.path.length)
    near = beside - across < WIDTH / 2 + MARGIN
    in_the_way = on_lane & near
    in_the_way[:, 1:] &= ~near[:, :1] | in_the_way[:, :1]  # followers are in the lane, and never come into it
    speed = np.cos(middle[:, 0, 2]) * states[:, 3] + np.sin(middle[:, 0, 2]) * states[:, 4]
    # 4. The first moment at which each agent is in the way.
    noticed: list[Noticed] = []
    for row in np.flatnonzero(in_the_way.any(1)):
        step = int(in_the_way[row].argmax())
        token = agents.tokens[rows[row]]
        noticed.append(Noticed(token, float(distance[row, step]), float(speed[row]), float(TIMES[step])))
    in_lane = [agent for agent in noticed if agent.after == 0]
    outside = [agent for agent in noticed if agent.after > 0]
    present = min(in_lane, key=lambda agent: agent.distance, default=None)
    entering = min(outside, key=lambda agent: agent.after, default=None)
    return present, entering
