"""A random world of site, agents and human."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from driving_scenes.generator import people, traffic
from driving_scenes.generator.agent import LATER, NOW, SEEN, TIMES, Agent, agent_boxes, overlapping
from driving_scenes.generator.curve import Array, Curve
from driving_scenes.generator.human_drive import DT, HumanDrive, Obstacles, drive, onward
from driving_scenes.generator.rigid_motion import moved
from driving_scenes.generator.roads import Random
from driving_scenes.generator.site import Site
from driving_scenes.scene import Agents, EgoHistory, Scene
from driving_scenes.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH

SIGHT = 90.0
"""Meters around the ego."""
RETURN = 6.0
RETURN_SECONDS = 1.0
"""A human returns to the path within these meters at least, or this time."""
Part = Callable[[Random, Site], list[Agent]]
PARTS: dict[Part, float] = {
    traffic.queue: 0.4,
    traffic.leader: 0.45,
    traffic.cut_in: 0.25,
    traffic.pull_out: 0.15,
    traffic.double_parked: 0.08,
    people.crossing: 0.25,
    people.works: 0.15,
    people.lost_cargo: 0.04,
    traffic.parked: 1.0,
    traffic.others: 0.9,
    people.cyclist: 0.15,
    people.beside: 0.7,
}
"""Chance of each part; earlier parts win overlaps."""


@dataclass(frozen=True)
class World:
    """8 s of traffic, from which scenes are cut."""

    site: Site
    agents: Sequence[Agent]  # from -1.5 to 8 s; until 4 s no two touch
    drive: HumanDrive  # until 4 s
    later: HumanDrive  # from 4 s on, without perturbation
    turn: float  # angle of scenes in their frame
    shift: tuple[float, float]  # of scenes in their frame

    @classmethod
    def random(cls, rng: Random, parts: Mapping[Part, float] = PARTS) -> World:
        """Draw a world.

        Args:
            parts: chance of each.
        """
        # The road, and agents that touch neither each other nor the ego at the start.
        site = Site.random(rng)
        agents: list[Agent] = []
        for part, chance in parts.items():
            if rng.random() < chance:
                agents += part(rng, site)
        agents = _clear_of_start(site, keep_apart(agents))
        # The human's drive; agents to which the human still comes too close are left out.
        driven = drive(site, agents, rng)
        while driven.hit.any():
            agents = [agent for agent, hit in zip(agents, driven.hit, strict=True) if not hit]
            driven = drive(site, agents, rng)
        # The drive goes on after 4 s, and vehicles follow it.
        others = Obstacles.of(agents, site.path, LATER)
        later = onward(site.later(), others, float(driven.s[-1]), driven.end)
        agents = keep_apart([*agents, *traffic.followers(rng, site, driven, later)])
        # The place and direction of the scene in its frame.
        turn = rng.uniform(-np.pi, np.pi)
        x, y = rng.uniform(-1000, 1000, 2)
        return cls(site, agents, driven, later, float(turn), (float(x), float(y)))

    def first_scene(self, name: str) -> Scene:
        history = ego_history(self.site.path, self.site.s, self.drive.start)
        return self.scene(name, name, self.site, history, self.agents, human_future(self.site.path, self.drive))

    def next_scene(self, previous: str) -> Scene:
        """The scene 0.5 s after the first scene, which is called `previous`."""
        places = np.append(self.drive.s[2:], self.later.s[1:3])
        # Of the human at 0.5 s, by differences over a quarter of a second.
        before, here, after = self.drive.s[1:4]
        speed = float(after - before) / (2 * DT)
        acceleration = float(after - 2 * here + before) / DT**2
        start = (speed, acceleration)
        history = ego_history(self.site.path, float(here), start)
        human = human_future(self.site.path, replace(self.drive, s=places, start=start))
        site = replace(self.site, s=float(here))
        scene = self.scene(f"{previous}_next", previous, site, history, keep_apart(self.agents, 1), human, first=1)
        return replace(scene, previous=previous)

    def scene(
        self,
        name: str,
        log: str,
        site: Site,
        ego: EgoHistory,
        agents: Sequence[Agent],
        human: Tensor | None = None,
        first: int = 0,
    ) -> Scene:
        """Cut a scene from `TIMES[first]` on; without a human the scene is synthetic."""
        network = site.road.network
        lanes_ahead = site.trip.lanes[site.trip.lane_at(site.s) :]
        scene = Scene(
            name=name,
            synthetic=human is None,
            map=network.road_map(),
            route=tuple(network.lanes[row].block for row in lanes_ahead),
            ego=ego,
            human=human,
            agents=_agents_near(agents, ego.poses[-1, :2].numpy(), first),
            lights=site.lights.states(len(network.lanes), float(TIMES[first] - TIMES[0])),
            log=log,
            intent=_intent_of(site),
        )
        return moved(scene, self.turn, self.shift)


def keep_apart(agents: Sequence[Agent], first: int = 0) -> list[Agent]:
    """Agents that touch no agent kept before them, in the scene from `TIMES[first]` on."""
    poses, sizes = agent_boxes(agents, first)
    # Also halfway between times, because fast cars could pass through each other.
    poses = np.concatenate([poses, (poses[:, 1:] + poses[:, :-1]) / 2], 1)
    # All pairs of agents, with a margin.
    poses = poses[:, None]
    sizes = sizes[:, None, None] + 0.2
    pairs = overlapping(poses, sizes, poses.swapaxes(0, 1), sizes.swapaxes(0, 1))
    hit = np.logical_or.reduce(pairs, axis=-1)
    kept = np.ones(len(agents), dtype=bool)
    for row in range(1, len(agents)):
        kept[row] = not hit[row, :row][kept[:row]].any()
    return [agent for agent, stays in zip(agents, kept, strict=True) if stays]


def _clear_of_start(site: Site, agents: Sequence[Agent]) -> list[Agent]:
    poses, sizes = agent_boxes(agents)
    times = TIMES[: NOW + 1]
    # The ego may have driven at its speed, or stood.
    traveled = np.stack([site.speed * times, 0 * times])
    start = site.path.at(site.s + REAR_AXLE_TO_CENTER + traveled)[:, None]
    size = np.array([LENGTH + 2.0, WIDTH + 0.8])
    hit = np.logical_or.reduce(overlapping(start, size, poses[:, : NOW + 1], sizes[:, None]), axis=(0, 2))
    return [agent for agent, near in zip(agents, hit, strict=True) if not near]


def ego_history(
    path: Curve, s: float, start: tuple[float, float], left: float = 0.0, heading: float = 0.0
) -> EgoHistory:
    """The ego's history, at constant acceleration with a straight drift.

    Args:
        path: of the ego.
        s: distance along the path at t = 0.
        start: speed and acceleration at t = 0.
        left: meters to the left of the path at t = 0.
        heading: radians to the left of the path's direction.
    """
    times = TIMES[: NOW + 1]
    speed, acceleration = start
    places = s + speed * times + acceleration * times**2 / 2
    speeds = speed + acceleration * times
    beside = left + (places - s) * np.tan(heading)
    poses = path.at(places, beside)
    bend = np.interp(places, path.s, path.curvature)
    # The inside of a bend is shorter than its middle.
    forward = 1 - beside * bend
    sideways = np.full(len(times), np.tan(heading))
    poses[:, 2] += np.arctan2(sideways, forward)
    # Meters that the ego drives for a meter of the path.
    stretch = np.hypot(forward, sideways)
    zero = np.zeros_like(speeds)
    gaining = acceleration * stretch + speeds * np.gradient(stretch, times)
    return EgoHistory(
        torch.from_numpy(times.copy()),
        torch.from_numpy(poses),
        torch.from_numpy(np.stack([speeds * stretch, zero], 1)),
        torch.from_numpy(np.stack([gaining, speeds**2 * bend], 1)),
    )


def human_future(path: Curve, driven: HumanDrive, left: float = 0.0, heading: float = 0.0) -> Tensor:
    """The human's drive ``[8, 3]`` in the frame of its start, every 0.5 s.

    Args:
        left: meters to the left of the path at t = 0; the human returns to the path.
        heading: radians to the left of the path's direction at t = 0.
    """
    places = driven.s[::2]
    speed, _ = driven.start
    length = max(RETURN, RETURN_SECONDS * speed)
    beside, slope = _return_to_path(places - places[0], left, np.tan(heading), length)
    poses = path.at(places, beside)
    poses[:, 2] += np.arctan2(slope, 1 - beside * np.interp(places, path.s, path.curvature))
    # In the frame of the start.
    later = poses[1:] - poses[0]
    cos = np.cos(poses[0, 2])
    sin = np.sin(poses[0, 2])
    forward = later[:, 0] * cos + later[:, 1] * sin
    sideways = later[:, 1] * cos - later[:, 0] * sin
    return torch.from_numpy(np.stack([forward, sideways, later[:, 2]], 1))


def _return_to_path(ways: Array, left: float, slope: float, length: float) -> tuple[Array, Array]:
    """Meters to the left of the path, and their slope, after ways in meters: a cubic, 0 from `length` on."""
    share = (ways / length).clip(0, 1)
    beside = left * (1 + 2 * share) * (1 - share) ** 2 + slope * length * share * (1 - share) ** 2
    slopes = -6 * left / length * share * (1 - share) + slope * (1 - share) * (1 - 3 * share)
    return beside, slopes


def _agents_near(agents: Sequence[Agent], ego: Array, first: int) -> Agents:
    tracks = []
    for agent in agents:
        track = agent.states[first : first + SEEN]
        near = np.flatnonzero(np.hypot(*(track[:, :2] - ego).T) < SIGHT)
        if len(near) > 1:  # an agent seen once would stand
            tracks.append((agent, track, slice(int(near[0]), int(near[-1]) + 1)))
    states = torch.zeros(len(tracks), SEEN, 5, dtype=torch.float64)
    seen = torch.zeros(len(tracks), SEEN, dtype=torch.bool)
    for row, (_, track, inside) in enumerate(tracks):
        states[row, inside] = torch.from_numpy(track[inside])
        seen[row, inside] = True
    return Agents(
        tuple(f"agent{row}" for row in range(len(tracks))),
        torch.tensor([agent.body.kind for agent, _, _ in tracks], dtype=torch.int64),
        torch.tensor([agent.body.size for agent, _, _ in tracks], dtype=torch.float64).reshape(-1, 3),
        torch.from_numpy(TIMES[:SEEN].copy()),
        states,
        seen,
    )


def _intent_of(site: Site) -> str:
    """``left``, ``straight`` or ``right``, by the turn in 4 s, or through a junction entered by then."""
    trip = site.trip
    end = site.s + max(4 * site.speed, 20.0)
    if trip.connector is not None and trip.ends[trip.connector - 1] < end:
        end = max(end, float(trip.ends[trip.connector]))
    yaw, end_yaw = np.interp([site.s, end], site.path.s, site.path.yaw)
    turn = float(end_yaw - yaw)
    if abs(turn) < np.pi / 6:
        return "straight"
    return "left" if turn > 0 else "right"
