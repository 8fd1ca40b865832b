"""A world, from its random numbers: a stage, who troubles the ego there, what the human does, and whoever else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.scenes.generator import people, traffic
from lightning_cgrpo.scenes.generator.human import Drive, Obstacles, drive, onward
from lightning_cgrpo.scenes.generator.motion import LATER, NOW, SEEN, TIMES, Agent, boxes, overlapping
from lightning_cgrpo.scenes.generator.paths import Array, Path
from lightning_cgrpo.scenes.generator.rigid_motion import moved
from lightning_cgrpo.scenes.generator.roads import Random
from lightning_cgrpo.scenes.generator.stage import Stage
from lightning_cgrpo.scenes.scene import Agents, EgoHistory, Scene
from lightning_cgrpo.scenes.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH

SIGHT = 90.0
"""Meters around the ego within which agents are seen."""
PARTS: dict[Callable[[Random, Stage], list[Agent]], float] = {
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
"""Chance of each part. Where agents are in each other's way, those of an earlier part stay."""


@dataclass(frozen=True)
class World:
    """What scenes are cut from.

    Args:
        stage: the road, and where the ego is on it at t = 0.
        agents: the others, from -1.5 to 8 s. Until 4 s none touches another.
        drive: what the human does until 4 s.
        later: and from then on, if nothing is perturbed.
        turn: the angle by which scenes are turned in their frame.
        shift: how far they are shifted then.
    """

    stage: Stage
    agents: Sequence[Agent]
    drive: Drive
    later: Drive
    turn: float
    shift: tuple[float, float]

    @classmethod
    def random(cls, rng: Random) -> World:
        """Draw one."""
        stage = Stage.random(rng)
        agents = [agent for part, chance in PARTS.items() if rng.random() < chance for agent in part(rng, stage)]
        agents = _clear_of_start(stage, apart(agents))
        driven = drive(stage, agents, rng)
        while driven.hit.any():
            agents = [agent for agent, hit in zip(agents, driven.hit, strict=True) if not hit]
            driven = drive(stage, agents, rng)
        # Those behind the human, who follow, aren't minded.
        others = Obstacles.of(agents, stage.path, LATER)
        later = onward(stage.later(), others, float(driven.s[-1]), driven.end)
        agents = apart([*agents, *traffic.followers(rng, stage, driven, later)])
        turn, x, y = rng.uniform(-np.pi, np.pi), *rng.uniform(-1000, 1000, 2)
        return cls(stage, agents, driven, later, float(turn), (float(x), float(y)))

    def first_scene(self, name: str) -> Scene:
        """At t = 0, with the human."""
        history = ego_history(self.stage.path, self.stage.s, self.drive.start)
        return self.scene(name, name, self.stage, history, self.agents, _future(self.stage.path, self.drive))

    def scene(
        self,
        name: str,
        log: str,
        stage: Stage,
        ego: EgoHistory,
        agents: Sequence[Agent],
        human: Tensor | None = None,
        first: int = 0,
    ) -> Scene:
        """A scene.

        Args:
            name: of the scene.
            log: of the scene.
            stage: with the place where the ego is.
            ego: in the world's frame.
            agents: the others.
            human: what the human drives; without him the scene is synthetic.
            first: the scene's first time, of `TIMES`.
        """
        network = stage.road.network
        scene = Scene(
            name,
            human is None,
            network.road_map(),
            tuple(network.lanes[row].block for row in stage.trip.lanes[stage.trip.lane_at(stage.s) :]),
            ego,
            human,
            _agents(agents, ego.poses[-1, :2].numpy(), first),
            stage.signals.lights(len(network.lanes), float(TIMES[first] - TIMES[0])),
            log=log,
            intent=_intent(stage),
        )
        return moved(scene, self.turn, self.shift)


def generate(rng: Random, name: str) -> Scene:
    """A scene by itself."""
    return World.random(rng).first_scene(name)


def apart(agents: Sequence[Agent], first: int = 0) -> list[Agent]:
    """Without those that touch an earlier one in a scene whose times begin with `first` of `TIMES`."""
    poses, sizes = boxes(agents, first)
    # Halfway between two times as well: fast cars could pass through each other.
    poses = np.concatenate([poses, (poses[:, 1:] + poses[:, :-1]) / 2], 1)
    poses, sizes = poses[:, None], sizes[:, None, None] + 0.2
    pairs = overlapping(poses, sizes, poses.swapaxes(0, 1), sizes.swapaxes(0, 1))
    hit = np.logical_or.reduce(pairs, axis=-1)
    kept = np.ones(len(agents), dtype=bool)
    for row in range(1, len(agents)):
        kept[row] = not hit[row, :row][kept[:row]].any()
    return [agent for agent, stays in zip(agents, kept, strict=True) if stays]


def _clear_of_start(stage: Stage, agents: Sequence[Agent]) -> list[Agent]:
    """Without those that are where the ego starts, or came through it."""
    poses, sizes = boxes(agents)
    times = TIMES[: NOW + 1]
    own = stage.path.at(stage.s + REAR_AXLE_TO_CENTER + np.stack([stage.speed * times, 0 * times]))[:, None]
    size = np.array([LENGTH + 2.0, WIDTH + 0.8])
    hit = np.logical_or.reduce(overlapping(own, size, poses[:, : NOW + 1], sizes[:, None]), axis=(0, 2))
    return [agent for agent, near in zip(agents, hit, strict=True) if not near]


def ego_history(
    path: Path, s: float, start: tuple[float, float], left: float = 0.0, heading: float = 0.0
) -> EgoHistory:
    """How an ego came to where it is, with the same acceleration and a straight drift.

    Args:
        path: along which it drove.
        s: distance along the path.
        start: speed along the path and acceleration.
        left: meters to the left of the path.
        heading: radians to the left of the path's direction.
    """
    times = TIMES[: NOW + 1]
    speed, acceleration = start
    places, speeds = s + speed * times + acceleration * times**2 / 2, speed + acceleration * times
    beside = left + (places - s) * np.tan(heading)
    poses = path.at(places, beside)
    bend = np.interp(places, path.s, path.curvature)
    # Who is on a bend's inside is slower than along its middle.
    forward, sideways = 1 - beside * bend, np.full(len(times), np.tan(heading))
    poses[:, 2] += np.arctan2(sideways, forward)
    stretch, zero = np.hypot(forward, sideways), np.zeros_like(speeds)
    gaining = acceleration * stretch + speeds * np.gradient(stretch, times)
    return EgoHistory(
        torch.from_numpy(times.copy()),
        torch.from_numpy(poses),
        torch.from_numpy(np.stack([speeds * stretch, zero], 1)),
        torch.from_numpy(np.stack([gaining, speeds**2 * bend], 1)),
    )


def _future(path: Path, driven: Drive) -> Tensor:
    """``[8, 3]`` what the human drives, in the ego's frame."""
    pose, later = path.at(driven.s[0]), path.at(driven.s[2::2])
    future = later - pose
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    forward, left = future[:, 0] * cos + future[:, 1] * sin, future[:, 1] * cos - future[:, 0] * sin
    return torch.from_numpy(np.stack([forward, left, future[:, 2]], 1))


def _agents(agents: Sequence[Agent], ego: Array, first: int) -> Agents:
    tracks = []
    for agent in agents:
        track = agent.states[first : first + SEEN]
        near = np.flatnonzero(np.hypot(*(track[:, :2] - ego).T) < SIGHT)
        if len(near) > 1:  # who is seen once would stay where he was seen
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


def _intent(stage: Stage) -> str:
    """Where the way leads within the next 4 s or through the junction."""
    trip, s = stage.trip, stage.s
    end = s + max(4 * stage.speed, 20.0)
    if trip.connector is not None and trip.ends[trip.connector - 1] < end:
        end = max(end, float(trip.ends[trip.connector]))
    turn = float(np.interp(end, stage.path.s, stage.path.yaw) - np.interp(s, stage.path.s, stage.path.yaw))
    return "straight" if abs(turn) < np.pi / 6 else "left" if turn > 0 else "right"
