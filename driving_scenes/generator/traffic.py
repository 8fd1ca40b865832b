"""Vehicles on the road, moving, waiting and parked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driving_scenes.generator.agent import TIMES, Agent, Body, allowed_speed, travel_along
from driving_scenes.generator.curve import Array
from driving_scenes.generator.human_drive import DT, HumanDrive
from driving_scenes.generator.roads import PARKING, Random
from driving_scenes.generator.site import NEVER, Site, Trip
from driving_scenes.vehicle import FRONT_LENGTH, REAR_LENGTH

REACTION = 0.8
"""Seconds until a start at a green light."""
DEPARTURE = 1.2
"""Acceleration of this start, m/s²."""


def random_vehicle(rng: Random) -> Body:
    """Mostly a car."""
    share = rng.random()
    model = "bus"
    if share < 0.88:
        model = "car"
    elif share < 0.96:
        model = "truck"
    return Body.random(rng, model)


def leader(rng: Random, site: Site) -> list[Agent]:
    """A vehicle ahead in the ego's lane, moving, braking or standing."""
    is_bicycle = rng.random() < 0.15
    body = Body.random(rng, "bicycle") if is_bicycle else random_vehicle(rng)
    gap = rng.uniform(3, 8) + rng.uniform(0.4, 3.0) * site.speed
    s = site.s + FRONT_LENGTH + gap + body.size[0] / 2
    pace = rng.choice([1.0, rng.uniform(0.3, 0.8), 0.0], p=[0.3, 0.5, 0.2])
    if is_bicycle:
        limit = rng.uniform(2.5, 6.5)
        left = rng.uniform(-1.0, 0.0)
    else:
        limit = site.cruise * pace
        left = rng.normal(0, 0.15)
    # On any trip that begins as the ego's does, so that the leader may turn off.
    shared = site.trip.lanes[: site.trip.lane_at(site.s) + 1]
    trips = [trip for trip in site.trips if trip.lanes[: len(shared)] == shared]
    trip = trips[rng.integers(len(trips))]
    at, speed = _drive_in_flow(rng, site, trip, s, limit, body)
    if rng.random() < 0.25:
        at, speed = _with_braking(rng, at, speed)
    return [Agent.driving(body, trip.path, at, speed, left)]


def _drive_in_flow(rng: Random, site: Site, trip: Trip, s: float, limit: float, body: Body) -> tuple[Array, Array]:
    """Distances and speeds ``[20]`` along the trip, from `s` at t = 0, slowed by bends and red lights."""
    lateral = rng.uniform(1.5, 2.5)
    brake = rng.uniform(1.5, 2.5)
    free = travel_along(trip.path, allowed_speed(trip.path, limit, lateral, brake), s)
    red = site.lights.red_from(trip)
    if _may_give_way(site, trip) and rng.random() < 0.75:
        red = (-NEVER, NEVER)
    if red is None or trip.line is None:
        return free
    stop = trip.line - body.size[0] / 2 - rng.uniform(0.5, 2.0)
    if s > stop or np.interp(red[0], TIMES, free[0]) > stop:  # passes before red
        return free
    # The vehicle stops, and starts again after the light turns green.
    at, speed = travel_along(trip.path, allowed_speed(trip.path, limit, lateral, brake, stop), s)
    since = (TIMES - red[1] - REACTION).clip(0)
    return at + DEPARTURE / 2 * since**2, speed + DEPARTURE * since


def _may_give_way(site: Site, trip: Trip) -> bool:
    """True if a junction trip begins in another lane than the ego's trip, and turns or meets no lights."""
    turns = abs(float(trip.path.yaw[-1] - trip.path.yaw[0])) > 0.8
    other_arm = bool(site.road.phases) and trip.lanes[0] != site.trip.lanes[0]
    return other_arm and (turns or not site.lights.phases)


def _with_braking(rng: Random, s: Array, speed: Array) -> tuple[Array, Array]:
    """Distances and speeds ``[20]`` of a vehicle that brakes to a share of its speed, or to a stop."""
    begin = rng.uniform(-1.5, 0.0)
    brake = rng.uniform(0.5, 2.0)
    # Every 0.1 s: the speed, at most that of the braking, and the distance driven.
    times = np.linspace(TIMES[0], TIMES[-1], 5 * len(TIMES) - 4)
    before = np.interp(begin, TIMES, speed)
    least = before * rng.uniform(-0.2, 0.7)
    most = (before - brake * (times - begin).clip(0)).clip(least).clip(0)
    slower = np.minimum(np.interp(times, TIMES, speed), most)
    traveled = np.append(0.0, ((slower[1:] + slower[:-1]) / 2 * np.diff(times)).cumsum())
    return s[0] + traveled[::5], slower[::5]


def queue(rng: Random, site: Site) -> list[Agent]:
    """Vehicles at the red light ahead of the ego."""
    red = site.lights.red_from(site.trip)
    if red is None or site.trip.line is None:
        return []
    agents: list[Agent] = []
    front = site.trip.line - rng.uniform(0.5, 2.5)
    for place in range(int(rng.integers(0, 4))):
        body = random_vehicle(rng)
        s = front - body.size[0] / 2
        if s - body.size[0] / 2 < site.s + FRONT_LENGTH + 2.0:
            break
        since = (TIMES - red[1] - REACTION * (place + 1)).clip(0)
        at = s + DEPARTURE / 2 * since**2
        speed = DEPARTURE * since
        agents.append(Agent.driving(body, site.trip.path, at, speed, rng.normal(0, 0.1)))
        front = s - body.size[0] / 2 - rng.uniform(1.5, 3.0)
    return agents


def cut_in(rng: Random, site: Site) -> list[Agent]:
    """A vehicle that changes into the ego's lane."""
    position = site.trip.lane_at(site.s)
    lane = site.road.network.lanes[site.trip.lanes[position]]
    block = site.road.network.blocks[lane.block]
    place = block.lanes.index(site.trip.lanes[position])
    sides = []  # of the neighboring lanes
    if place > 0:
        sides.append(1)
    if place < len(block.lanes) - 1:
        sides.append(-1)
    if not sides or block.connector:
        return []
    body = random_vehicle(rng)
    speed = site.speed * rng.uniform(0.6, 1.1)
    s = site.s + FRONT_LENGTH + body.size[0] / 2 + rng.uniform(3, 8) + rng.uniform(0.3, 1.5) * site.speed
    if site.trip.line is not None and s + 4 * speed > site.trip.line:
        return []
    begin = rng.uniform(-2.5, 0.5)
    seconds = rng.uniform(3.0, 4.5)
    left, sideways = _lane_change(rng.choice(sides) * lane.width, begin, seconds)
    return [Agent.driving(body, site.path, s + speed * TIMES, np.full(len(TIMES), speed), left, sideways)]


def _lane_change(left: float, begin: float, seconds: float) -> tuple[Array, Array]:
    """Meters to the left of a path ``[20]``, from `left` to 0 within `seconds` after `begin`, and their rates."""
    share = ((TIMES - begin) / seconds).clip(0, 1)
    beside = left * (1 + np.cos(np.pi * share)) / 2
    rate = -left * np.pi / 2 / seconds * np.sin(np.pi * share)
    return beside, rate


def pull_out(rng: Random, site: Site) -> list[Agent]:
    """A parked car that pulls out into the ego's lane, if this lane is rightmost and the road has parking."""
    s = site.s + rng.uniform(14, 25) + rng.uniform(1.2, 2.5) * site.speed
    position = site.trip.lane_at(s)
    lane = site.road.network.lanes[site.trip.lanes[position]]
    block = site.road.network.blocks[lane.block]
    if block.connector or block.lanes[-1] != site.trip.lanes[position] or not site.road.parking:
        return []
    body = Body.random(rng, "car")
    begin = rng.uniform(-2.5, -0.5)
    left, sideways = _lane_change(-(lane.width + PARKING) / 2, begin, rng.uniform(3.5, 5))
    since = (TIMES - begin).clip(0)
    pace = rng.uniform(0.8, 1.6)
    speed = pace * since.clip(None, 4 - begin)
    at = s + pace / 2 * since**2 - pace / 2 * (TIMES - 4).clip(0) ** 2
    return [Agent.driving(body, site.path, at, speed, left, sideways * np.tanh(since))]


def parked(rng: Random, site: Site) -> list[Agent]:
    """Parked cars, some of which reach into the lane."""
    agents = []
    for strip in site.road.parking:
        share = rng.uniform(0.1, 0.8)
        for s in np.arange(4, strip.length - 4, 7.0):
            if rng.random() < share:
                model = "car" if rng.random() < 0.95 else "truck"
                body = Body.random(rng, model)
                into_lane = rng.normal(0, 0.12) if rng.random() < 0.9 else rng.uniform(0.3, 0.7)
                pose = strip.at(s + rng.uniform(-0.8, 0.8), into_lane)
                pose[2] += rng.normal(0, 0.02)
                agents.append(Agent.standing(body, pose))
    near = site.path.at(site.s)[:2]
    return [agent for agent in agents if np.hypot(*(agent.states[0, :2] - near)) < 60]


def double_parked(rng: Random, site: Site) -> list[Agent]:
    """A vehicle at the right side of the ego's lane."""
    s = site.s + rng.uniform(15, 25) + rng.uniform(1, 2.5) * site.speed
    if site.trip.line is not None and s > site.trip.line - 8:
        return []
    return [Agent.standing(random_vehicle(rng), site.path.at(s, rng.uniform(-1.2, 0.0)))]


def others(rng: Random, site: Site) -> list[Agent]:
    """Vehicles on up to six trips, oncoming and crossing included."""
    agents = []
    some_trips = [site.trips[row] for row in rng.permutation(len(site.trips))[:6]]
    for trip in some_trips:
        body = random_vehicle(rng)
        for s in _random_places(rng, site, trip):
            at, speed = _drive_in_flow(rng, site, trip, s, site.road.limit * rng.uniform(0.7, 1.0), body)
            agents.append(Agent.driving(body, trip.path, at, speed, rng.normal(0, 0.15)))
            body = random_vehicle(rng)
    return agents


def _random_places(rng: Random, site: Site, trip: Trip) -> Sequence[float]:
    """Distances along a trip, near the ego or the junction, but not just ahead of the ego."""
    near = trip.line
    if near is None:
        near = float(trip.path.project(site.path.at(site.s)[None, :2])[0, 0])
    places = near + rng.uniform(-50, 30, int(rng.integers(1, 4)))
    if trip.lanes[0] == site.trip.lanes[0]:
        places = places[places > site.s + 30]
    return [float(s) for s in places if 5 < s < trip.path.length - 5]


def followers(rng: Random, site: Site, drive: HumanDrive, later: HumanDrive) -> list[Agent]:
    """Vehicles that repeat the human's drive until 8 s with a delay, behind it."""
    delay = 0.0
    back = REAR_LENGTH
    places = np.append(drive.s, later.s[1:])
    fine = np.arange(len(places)) * DT
    agents = []
    for _ in range(int(rng.integers(0, 3))):
        body = random_vehicle(rng)
        delay += rng.uniform(0.8, 1.8)
        back += rng.uniform(1.5, 4.0) + body.size[0] / 2
        times = np.arange(TIMES[0] - 0.25, TIMES[-1] + 0.3, 0.25) - delay
        speed, acceleration = drive.start
        # Constant speed before the history.
        past = times.clip(TIMES[0], 0)
        s = drive.before(past) + (speed + acceleration * past) * (times - past).clip(None, 0)
        s = np.where(times > 0, np.interp(times, fine, places), s) - back
        if s[0] < 3:
            break
        speeds = (s[2:] - s[:-2]) / 0.5
        agents.append(Agent.driving(body, site.path, s[1:-1:2], speeds[::2], rng.normal(0, 0.1)))
        back += body.size[0] / 2
    return agents
