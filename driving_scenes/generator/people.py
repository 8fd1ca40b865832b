"""People, bicycles, cones and other objects."""

from __future__ import annotations

import numpy as np

from driving_scenes.generator.agent import TIMES, Agent, Body
from driving_scenes.generator.roads import PARKING, Random
from driving_scenes.generator.site import Site


def crossing(rng: Random, site: Site) -> list[Agent]:
    """People who cross the road at about the ego's arrival."""
    s = site.s + rng.uniform(9, 14) + rng.uniform(1.0, 3.0) * site.speed
    if site.trip.line is not None and site.s < site.trip.line < s + 6:
        s = max(site.trip.line + 1.5, site.s + 8)  # the crosswalk
    arrival = (s - site.s) / max(site.speed, 3.0)
    side = rng.choice([-1, 1])
    agents = []
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        speed = rng.uniform(0.8, 2.0)
        left = -side * speed * (arrival + rng.uniform(-2.0, 1.5))
        pose = site.path.at(s + rng.uniform(-0.9, 0.9), left)
        pose[2] += side * np.pi / 2 + rng.normal(0, 0.1)
        agents.append(Agent.walking(Body.random(rng, "pedestrian"), pose, speed))
    return agents


def beside(rng: Random, site: Site) -> list[Agent]:
    """People who walk or stand along the road."""
    agents = []
    for edge in site.road.edges:
        near = float(edge.project(site.path.at(site.s + 15)[None, :2])[0, 0])
        for _ in range(int(rng.integers(0, 3))):
            s = np.clip(near + rng.uniform(-30, 35), 8, edge.length - 8)  # not in the junction
            pose = edge.at(s, -PARKING - rng.uniform(0.5, 3.0))
            pose[2] += rng.choice([0, np.pi]) + rng.normal(0, 0.1)
            speed = rng.choice([0.0, rng.uniform(0.8, 1.8)], p=[0.25, 0.75])
            agents.append(Agent.walking(Body.random(rng, "pedestrian"), pose, speed))
    return agents


def cyclist(rng: Random, site: Site) -> list[Agent]:
    """A bicycle at the right side of the ego's lane, if this lane is the rightmost."""
    row = site.trip.lanes[site.trip.lane_at(site.s)]
    lane = site.road.network.lanes[row]
    if site.road.network.blocks[lane.block].lanes[-1] != row:
        return []
    speed = rng.uniform(2.5, 6.5)
    s = site.s + rng.uniform(8, 15) + rng.uniform(0, 2) * site.speed
    left = rng.uniform(0.3, 0.8) - lane.width / 2
    places = s + speed * TIMES
    return [Agent.driving(Body.random(rng, "bicycle"), site.path, places, np.full(len(TIMES), speed), left)]


def works(rng: Random, site: Site) -> list[Agent]:
    """Cones or barriers along the ego's lane, behind a sign."""
    lane = site.road.network.lanes[site.trip.lanes[site.trip.lane_at(site.s)]]
    side = rng.choice([-1, 1])
    reach = rng.uniform(-0.4, 0.15)
    first = site.s + rng.uniform(8, 15) + rng.uniform(0, 2) * site.speed
    if rng.random() < 0.7:
        model = "cone"
        spacing = rng.uniform(2.5, 5)
    else:
        model = "barrier"
        spacing = rng.uniform(2.6, 4)
    agents = []
    for number in range(int(rng.integers(3, 10))):
        left = side * (lane.width / 2 - reach * min(number / 3, 1))
        s = first + number * spacing
        if site.trip.line is not None and s > site.trip.line:
            break
        agents.append(Agent.standing(Body.random(rng, model), site.path.at(s, left)))
    sign = site.path.at(first - rng.uniform(2, 6), side * (lane.width / 2 + 0.4))
    if not agents:
        return []
    return [*agents, Agent.standing(Body.random(rng, "sign"), sign)]


def lost_cargo(rng: Random, site: Site) -> list[Agent]:
    """An object on the road."""
    s = site.s + rng.uniform(15, 25) + rng.uniform(1, 2.5) * site.speed
    pose = site.path.at(s, rng.uniform(-1.8, 1.8))
    pose[2] += rng.uniform(-np.pi, np.pi)
    return [Agent.standing(Body.random(rng, "object"), pose)]
