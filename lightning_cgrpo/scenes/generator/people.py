"""People, bicycles at the side, cones and other things."""

from __future__ import annotations

import numpy as np

from lightning_cgrpo.scenes.generator.motion import TIMES, Agent, Body
from lightning_cgrpo.scenes.generator.roads import PARKING, Random
from lightning_cgrpo.scenes.generator.stage import Stage


def crossing(rng: Random, stage: Stage) -> list[Agent]:
    """Walks across the road ahead of the ego, alone or in a group, at about the time when it comes there."""
    s = stage.s + rng.uniform(9, 14) + rng.uniform(1.0, 3.0) * stage.speed
    if stage.trip.line is not None and stage.s < stage.trip.line < s + 6:
        s = max(stage.trip.line + 1.5, stage.s + 8)  # where the crosswalk is
    arrival = (s - stage.s) / max(stage.speed, 3.0)
    side = rng.choice([-1, 1])
    agents = []
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        speed = rng.uniform(0.8, 2.0)
        left = -side * speed * (arrival + rng.uniform(-2.0, 1.5))
        pose = stage.path.at(s + rng.uniform(-0.9, 0.9), left)
        pose[2] += side * np.pi / 2 + rng.normal(0, 0.1)
        agents.append(Agent.walking(Body.random(rng, "pedestrian"), pose, speed))
    return agents


def beside(rng: Random, stage: Stage) -> list[Agent]:
    """Walks along the road, or stands there."""
    agents = []
    for edge in stage.road.edges:
        near = float(edge.project(stage.path.at(stage.s + 15)[None, :2])[0, 0])
        for _ in range(int(rng.integers(0, 3))):
            s = np.clip(near + rng.uniform(-30, 35), 8, edge.length - 8)  # doesn't walk into the junction
            pose = edge.at(s, -PARKING - rng.uniform(0.5, 3.0))
            pose[2] += rng.choice([0, np.pi]) + rng.normal(0, 0.1)
            speed = rng.choice([0.0, rng.uniform(0.8, 1.8)], p=[0.25, 0.75])
            agents.append(Agent.walking(Body.random(rng, "pedestrian"), pose, speed))
    return agents


def cyclist(rng: Random, stage: Stage) -> list[Agent]:
    """Rides at the right side of the ego's lane, which is the one at the edge."""
    row = stage.trip.lanes[stage.trip.lane_at(stage.s)]
    lane = stage.road.network.lanes[row]
    if stage.road.network.blocks[lane.block].lanes[-1] != row:
        return []
    speed, s = rng.uniform(2.5, 6.5), stage.s + rng.uniform(8, 15) + rng.uniform(0, 2) * stage.speed
    left = rng.uniform(0.3, 0.8) - lane.width / 2
    places = s + speed * TIMES
    return [Agent.driving(Body.random(rng, "bicycle"), stage.path, places, np.full(len(TIMES), speed), left)]


def works(rng: Random, stage: Stage) -> list[Agent]:
    """Cones or barriers along one side of the ego's lane, a sign before them; they may reach into the lane."""
    lane = stage.road.network.lanes[stage.trip.lanes[stage.trip.lane_at(stage.s)]]
    side, reach = rng.choice([-1, 1]), rng.uniform(-0.4, 0.15)
    first = stage.s + rng.uniform(8, 15) + rng.uniform(0, 2) * stage.speed
    model, spacing = ("cone", rng.uniform(2.5, 5)) if rng.random() < 0.7 else ("barrier", rng.uniform(2.6, 4))
    agents = []
    for i in range(int(rng.integers(3, 10))):
        left, s = side * (lane.width / 2 - reach * min(i / 3, 1)), first + i * spacing
        if stage.trip.line is not None and s > stage.trip.line:
            break
        agents.append(Agent.standing(Body.random(rng, model), stage.path.at(s, left)))
    sign = stage.path.at(first - rng.uniform(2, 6), side * (lane.width / 2 + 0.4))
    return [*agents, Agent.standing(Body.random(rng, "sign"), sign)] if agents else []


def lost_cargo(rng: Random, stage: Stage) -> list[Agent]:
    """A thing on the road, mostly in the ego's way."""
    s = stage.s + rng.uniform(15, 25) + rng.uniform(1, 2.5) * stage.speed
    pose = stage.path.at(s, rng.uniform(-1.8, 1.8))
    pose[2] += rng.uniform(-np.pi, np.pi)
    return [Agent.standing(Body.random(rng, "object"), pose)]
