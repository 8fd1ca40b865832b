"""One scene, from its random numbers: a stage, who troubles the ego there, what the human does, and whoever else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.tasks.driving.scene import Agents, EgoHistory, Scene
from lightning_cgrpo.tasks.driving.sources.generator import people, traffic
from lightning_cgrpo.tasks.driving.sources.generator.human import Drive, drive
from lightning_cgrpo.tasks.driving.sources.generator.motion import NOW, TIMES, Agent, boxes, overlapping
from lightning_cgrpo.tasks.driving.sources.generator.moving import moved
from lightning_cgrpo.tasks.driving.sources.generator.paths import Array
from lightning_cgrpo.tasks.driving.sources.generator.roads import Random
from lightning_cgrpo.tasks.driving.sources.generator.stage import Stage
from lightning_cgrpo.tasks.driving.vehicle import LENGTH, REAR_AXLE_TO_CENTER, WIDTH

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


def generate(rng: Random, name: str) -> Scene:
    """A scene."""
    stage = Stage.random(rng)
    agents = [agent for part, chance in PARTS.items() if rng.random() < chance for agent in part(rng, stage)]
    agents = _clear_of_start(stage, _apart(agents))
    driven = drive(stage, agents, rng)
    while driven.hit.any():
        agents = [agent for agent, hit in zip(agents, driven.hit, strict=True) if not hit]
        driven = drive(stage, agents, rng)
    agents = _apart([*agents, *traffic.followers(rng, stage, driven)])
    history, human = _ego(stage, driven)
    network = stage.road.network
    scene = Scene(
        name,
        False,
        network.road_map(),
        tuple(network.lanes[row].block for row in stage.trip.lanes[stage.trip.lane_at(stage.s) :]),
        history,
        human,
        _agents(agents, history.poses[-1, :2].numpy()),
        stage.signals.lights(len(network.lanes)),
        log=name,
        intent=_intent(stage),
    )
    angle, x, y = rng.uniform(-np.pi, np.pi), *rng.uniform(-1000, 1000, 2)
    return moved(scene, float(angle), (float(x), float(y)))


def _apart(agents: Sequence[Agent]) -> list[Agent]:
    """Without those that touch an earlier one."""
    poses, sizes = boxes(agents)
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


def _ego(stage: Stage, driven: Drive) -> tuple[EgoHistory, Tensor]:
    times = TIMES[: NOW + 1]
    s = driven.before(times)
    start, acceleration = driven.start
    speed = start + acceleration * times
    poses = stage.path.at(s)
    bend = np.interp(s, stage.path.s, stage.path.curvature)
    zero = np.zeros_like(speed)
    history = EgoHistory(
        torch.from_numpy(times.copy()),
        torch.from_numpy(poses),
        torch.from_numpy(np.stack([speed, zero], 1)),
        torch.from_numpy(np.stack([zero + acceleration, speed**2 * bend], 1)),
    )
    future = stage.path.at(driven.s[2::2]) - poses[-1]
    cos, sin = np.cos(poses[-1, 2]), np.sin(poses[-1, 2])
    forward, left = future[:, 0] * cos + future[:, 1] * sin, future[:, 1] * cos - future[:, 0] * sin
    return history, torch.from_numpy(np.stack([forward, left, future[:, 2]], 1))


def _agents(agents: Sequence[Agent], ego: Array) -> Agents:
    tracks = []
    for agent in agents:
        near = np.flatnonzero(np.hypot(*(agent.states[:, :2] - ego).T) < SIGHT)
        if len(near) > 1:  # who is seen once would stay where he was seen
            tracks.append((agent, slice(int(near[0]), int(near[-1]) + 1)))
    states = torch.zeros(len(tracks), len(TIMES), 5, dtype=torch.float64)
    seen = torch.zeros(len(tracks), len(TIMES), dtype=torch.bool)
    for row, (agent, inside) in enumerate(tracks):
        states[row, inside] = torch.from_numpy(agent.states[inside])
        seen[row, inside] = True
    return Agents(
        tuple(f"agent{row}" for row in range(len(tracks))),
        torch.tensor([agent.body.kind for agent, _ in tracks], dtype=torch.int64),
        torch.tensor([agent.body.size for agent, _ in tracks], dtype=torch.float64).reshape(-1, 3),
        torch.from_numpy(TIMES.copy()),
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
