"""Where a scene takes place: a road, the way the ego takes over it, where it is on that way, and the lights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from lightning_cgrpo.scenes.generator.motion import allowed_speed
from lightning_cgrpo.scenes.generator.network import Network
from lightning_cgrpo.scenes.generator.paths import Array, Path
from lightning_cgrpo.scenes.generator.roads import KINDS, Random, Road
from lightning_cgrpo.scenes.scene import Lights
from lightning_cgrpo.scenes.vehicle import FRONT_LENGTH

NEVER = 1e3
USUAL = 2.0, 1.7
"""Largest acceleration in bends, and deceleration before them, m/s², as they are drawn on the average."""
SHARPEST_START = 0.015
"""1/m, of the road where the ego starts, as a rule."""


class Trip:
    """A way through the map.

    Args:
        network: the map.
        lanes: rows, one after another.
    """

    def __init__(self, network: Network, lanes: tuple[int, ...]) -> None:
        self.lanes = lanes
        self._paths = [network.lanes[row].path for row in lanes]
        connectors = [i for i, row in enumerate(lanes) if network.blocks[network.lanes[row].block].connector]
        self.connector = connectors[0] if connectors else None
        """The position of the connector in `lanes`, if the way leads through a junction or a merge."""

    @cached_property
    def path(self) -> Path:
        """The lanes' center line."""
        return Path.joined(self._paths)

    @cached_property
    def ends(self) -> Array:
        """Distances along the path at which each lane ends."""
        return np.cumsum([path.length for path in self._paths])

    @property
    def line(self) -> float | None:
        """Distance at which the connector begins."""
        return None if self.connector is None else float(self.ends[self.connector - 1])

    def lane_at(self, s: float) -> int:
        """The position in `lanes`."""
        return min(int(np.searchsorted(self.ends, s)), len(self.lanes) - 1)


@dataclass(frozen=True)
class Signals:
    """Lights of a junction: one phase is green until the switch, then the others.

    Args:
        phases: connectors that are green together; none where there are no lights.
        first: the phase that is green at the beginning.
        switch: when that changes, s.
    """

    phases: tuple[list[int], ...] = ()
    first: int = 0
    switch: float = NEVER

    def red_from(self, trip: Trip) -> tuple[float, float] | None:
        """When the light on the way is red, from and to; None if it isn't."""
        if trip.connector is None:
            return None
        for number, phase in enumerate(self.phases):
            if trip.lanes[trip.connector] in phase:
                if number != self.first:
                    return -NEVER, self.switch
                return None if self.switch == NEVER else (self.switch, NEVER)
        return None

    def lights(self, lanes: int, start: float = 0.0) -> Lights:
        """Of a scene that starts then, at 0 to 4 s; empty without lights."""
        times = torch.arange(9 if self.phases else 0, dtype=torch.float64) * 0.5
        red = torch.zeros(len(times), lanes, dtype=torch.bool)
        green = red.clone()
        for number, phase in enumerate(self.phases):
            on = (start + times < self.switch) == (number == self.first)
            green[:, phase] = on[:, None]
            red[:, phase] = ~on[:, None]
        return Lights(times, red, green)


@dataclass(frozen=True)
class Stage:
    """What the ego drives through.

    Args:
        road: it all.
        trips: every way through it.
        trip: the ego's.
        path: the line the ego's rear axle follows, a little beside the lane's center.
        s: where it is at t = 0.
        signals: lights.
        speeds: ``[N]`` the most the human drives at every point of `path`, minding bends and the light.
        cruise: what the human would drive where nothing is in the way.
    """

    road: Road
    trips: list[Trip]
    trip: Trip
    path: Path
    s: float
    signals: Signals
    speeds: Array
    cruise: float

    @property
    def speed(self) -> float:
        """The most the human drives at t = 0."""
        return float(np.interp(self.s, self.path.s, self.speeds))

    def later(self) -> Stage:
        """As it is 4 s later: nobody waits for a light that is green by then."""
        red = self.signals.red_from(self.trip)
        if red is None or red[1] > 4:
            return self
        return replace(self, speeds=allowed_speed(self.path, self.cruise, *USUAL))

    @classmethod
    def random(cls, rng: Random) -> Stage:
        """Draw one."""
        kinds = list(KINDS)
        road = kinds[rng.choice(len(kinds), p=list(KINDS.values()))](rng)
        trips = [Trip(road.network, lanes) for lanes in road.network.trips()]
        trip = trips[rng.integers(len(trips))]
        cruise = road.limit * rng.uniform(0.65, 1.0)
        first, last = 45.0, trip.path.length - 6.5 * road.limit
        if trip.line is None:
            # Not in a tight bend: the simulated car starts with straight wheels.
            places = rng.uniform(first, max(last, first + 1), 8)
            bends = np.abs(np.interp(places, trip.path.s, trip.path.curvature))
            s = float(places[(bends > SHARPEST_START).argmin()])
        else:
            s = trip.line - rng.uniform(-6, 8 + 2.0 * cruise)
        signals = Signals()
        if road.phases and rng.random() < 0.7:
            signals = _signals(rng, road, trip, s)
        stop = None
        red = signals.red_from(trip)
        if red is not None and trip.line is not None:
            stop = trip.line - FRONT_LENGTH - rng.uniform(2.0, 3.5)
            s = min(s, stop)
        path = trip.path.offset(np.clip(rng.normal(0, 0.12), -0.3, 0.3))
        speeds = allowed_speed(path, cruise, rng.uniform(1.5, 2.5), rng.uniform(1.2, 2.2), stop)
        return cls(road, trips, trip, path, s, signals, speeds, cruise)


def _signals(rng: Random, road: Road, trip: Trip, s: float) -> Signals:
    assert trip.connector is not None and trip.line is not None
    own = next(i for i, phase in enumerate(road.phases) if trip.lanes[trip.connector] in phase)
    # It never turns red for the ego, who could be too close; whoever has passed the line drives on green.
    if s + FRONT_LENGTH + 1 > trip.line or rng.random() < 0.3:
        return Signals(road.phases, own)
    return Signals(road.phases, 1 - own, rng.uniform(1.5, 4.0) if rng.random() < 0.25 else NEVER)
