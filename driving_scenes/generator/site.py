"""A scene's road, trip of the ego, and lights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from driving_scenes.generator.agent import allowed_speed
from driving_scenes.generator.curve import Array, Curve
from driving_scenes.generator.road_network import RoadNetwork
from driving_scenes.generator.roads import KINDS, Random, Road
from driving_scenes.scene import Lights
from driving_scenes.vehicle import FRONT_LENGTH

NEVER = 1e3
USUAL = (2.0, 1.7)
"""Lateral acceleration in bends and deceleration before bends, m/s²."""
SHARPEST_START = 0.015
"""1/m; scenes start in gentler bends if possible, because the simulated car starts with straight wheels."""


@dataclass(frozen=True, eq=False)
class Trip:
    """A way through the map, over the rows of `lanes`."""

    network: RoadNetwork
    lanes: tuple[int, ...]

    @cached_property
    def connector(self) -> int | None:
        """The first connector's position in `lanes`; None without."""
        for position, row in enumerate(self.lanes):
            if self.network.blocks[self.network.lanes[row].block].connector:
                return position
        return None

    @cached_property
    def _paths(self) -> list[Curve]:
        return [self.network.lanes[row].path for row in self.lanes]

    @cached_property
    def path(self) -> Curve:
        return Curve.joined(self._paths)

    @cached_property
    def ends(self) -> Array:
        """Distance of each lane's end along the trip."""
        return np.cumsum([path.length for path in self._paths])

    @property
    def line(self) -> float | None:
        """Distance of the connector's begin along the trip, if any."""
        if self.connector is None:
            return None
        return float(self.ends[self.connector - 1])

    def lane_at(self, s: float) -> int:
        return min(int(np.searchsorted(self.ends, s)), len(self.lanes) - 1)


@dataclass(frozen=True)
class JunctionLights:
    """Lights of a junction: one phase is green until the switch, then the others."""

    phases: tuple[list[int], ...] = ()  # rows of connectors that are green together
    first: int = 0  # phase that is green at the beginning
    switch: float = NEVER  # seconds

    def red_from(self, trip: Trip) -> tuple[float, float] | None:
        """Begin and end of a trip's red light, in seconds from the first scene's t = 0; None if never red."""
        if trip.connector is None:
            return None
        for number, phase in enumerate(self.phases):
            if trip.lanes[trip.connector] in phase:
                if number != self.first:
                    return -NEVER, self.switch
                if self.switch != NEVER:
                    return self.switch, NEVER
                return None
        return None

    def states(self, lanes: int, start: float) -> Lights:
        """The lights from 0 to 4 s of a scene that begins `start` seconds after the first scene."""
        count = 9 if self.phases else 0
        times = torch.arange(count, dtype=torch.float64) * 0.5
        red = torch.zeros(len(times), lanes, dtype=torch.bool)
        green = red.clone()
        for number, phase in enumerate(self.phases):
            on = (start + times < self.switch) == (number == self.first)
            green[:, phase] = on[:, None]
            red[:, phase] = ~on[:, None]
        return Lights(times, red, green)


@dataclass(frozen=True)
class Site:
    """Everything around the ego but other agents."""

    road: Road
    trips: list[Trip]  # every way through the map
    trip: Trip  # the ego's
    path: Curve  # of the ego's rear axle, a little beside the centerline
    s: float  # distance along the path at t = 0
    lights: JunctionLights
    speeds: Array  # [N] the human's highest speed at every point of the path, in view of bends and the light
    cruise: float  # the human's speed on a free road

    @property
    def speed(self) -> float:
        """The human's highest speed at `s`, in m/s."""
        return float(np.interp(self.s, self.path.s, self.speeds))

    def later(self) -> Site:
        """The site 4 s later, with the same `s`; a light that turned green no longer limits speed."""
        red = self.lights.red_from(self.trip)
        if red is None or red[1] > 4:
            return self
        return replace(self, speeds=allowed_speed(self.path, self.cruise, *USUAL))

    @classmethod
    def random(cls, rng: Random) -> Site:
        # A road, and the ego's trip on it.
        kinds = list(KINDS)
        draw_road = kinds[rng.choice(len(kinds), p=list(KINDS.values()))]
        road = draw_road(rng)
        trips = [Trip(road.network, lanes) for lanes in road.network.trips()]
        trip = trips[rng.integers(len(trips))]
        cruise = road.limit * rng.uniform(0.65, 1.0)
        # The ego's place at t = 0: on a street in a gentle bend if possible, else near the junction's line.
        first = 45.0
        last = trip.path.length - 6.5 * road.limit
        if trip.line is None:
            places = rng.uniform(first, max(last, first + 1), 8)
            bends = np.abs(np.interp(places, trip.path.s, trip.path.curvature))
            s = float(places[(bends > SHARPEST_START).argmin()])
        else:
            s = trip.line - rng.uniform(-6, 8 + 2.0 * cruise)
        # Lights, for which the ego stops if they are red.
        lights = JunctionLights()
        if road.phases and rng.random() < 0.7:
            lights = _draw_lights(rng, road, trip, s)
        stop = None
        red = lights.red_from(trip)
        if red is not None and trip.line is not None:
            stop = trip.line - FRONT_LENGTH - rng.uniform(2.0, 3.5)
            s = min(s, stop)
        path = trip.path.offset(np.clip(rng.normal(0, 0.12), -0.3, 0.3))
        lateral = rng.uniform(1.5, 2.5)
        brake = rng.uniform(1.2, 2.2)
        speeds = allowed_speed(path, cruise, lateral, brake, stop)
        return cls(road=road, trips=trips, trip=trip, path=path, s=s, lights=lights, speeds=speeds, cruise=cruise)


def _draw_lights(rng: Random, road: Road, trip: Trip, s: float) -> JunctionLights:
    assert trip.connector is not None and trip.line is not None
    connector = trip.lanes[trip.connector]
    ego_phase = next(number for number, phase in enumerate(road.phases) if connector in phase)
    # The ego's light never turns red, because the ego could be too close. An ego beyond the line has green.
    if s + FRONT_LENGTH + 1 > trip.line or rng.random() < 0.3:
        return JunctionLights(road.phases, ego_phase)
    switch = NEVER
    if rng.random() < 0.25:
        switch = rng.uniform(1.5, 4.0)
    return JunctionLights(road.phases, 1 - ego_phase, switch)
