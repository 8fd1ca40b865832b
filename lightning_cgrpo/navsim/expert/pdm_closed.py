"""PDM-Closed, the official expert: of its proposals, the one that scores best in a forecast.

See NAVSIM.md 1.12; officially abstract_pdm_closed_planner.py and ``metric_cache_processor.py:56-69``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.navsim.aggregation import MULTIPLIERS, epdms
from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch
from lightning_cgrpo.navsim.expert.forecast import Forecast, as_traffic
from lightning_cgrpo.navsim.expert.proposals import PROPOSALS, propose
from lightning_cgrpo.navsim.geometry.path import Array, Path
from lightning_cgrpo.navsim.route.lane_ahead import lane_ahead
from lightning_cgrpo.navsim.scoring.progress import ego_progress
from lightning_cgrpo.navsim.scoring.sub_scores import SubScores
from lightning_cgrpo.navsim.simulation.simulate import track
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.scenes.scene import Lights, Scene

SCENES_AT_ONCE = 64
"""Scenes whose proposals are scored together; more only take more memory."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What the expert does in a scene.

    Args:
        trajectory: ``[41, 3]`` x, y, yaw of the rear axle in the scene's frame, at 10 Hz.
        centerline: ``[C, 2]`` of the route, from where the ego's lane begins.
        route_lanes: rows of the lanes of the corrected route.
    """

    trajectory: Tensor
    centerline: Tensor
    route_lanes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Options:
    """What the planner chooses from in a scene."""

    scene: Scene
    route: tuple[int, ...]
    lanes: tuple[int, ...]
    centerline: Path
    forecast: Forecast
    proposals: Array


def plan(scenes: Sequence[Scene]) -> list[Plan]:
    """Plan each scene, from what is known at t = 0.

    Raises:
        SceneError: a scene's route is empty, or has no lanes.
    """
    plans: list[Plan] = []
    for first in range(0, len(scenes), SCENES_AT_ONCE):
        plans += _chosen([_options(scene) for scene in scenes[first : first + SCENES_AT_ONCE]])
    return plans


def _options(scene: Scene) -> _Options:
    ahead = lane_ahead(scene)
    forecast = Forecast.of(ahead.road, ahead.route_lanes)
    pose, velocity = scene.ego.poses[-1].numpy(), scene.ego.velocities[-1]
    limit = float(ahead.road.lanes.speed_limit[ahead.lanes[0]])
    proposals = propose(ahead.path, limit, pose, float(velocity[0]), forecast)
    return _Options(scene, ahead.route, ahead.route_lanes, ahead.path, forecast, proposals)


def _chosen(options: Sequence[_Options]) -> list[Plan]:
    """The best of the proposals of each scene."""
    proposals = torch.from_numpy(np.stack([each.proposals for each in options]))
    plans = [
        Plan(proposals[row, 0], torch.from_numpy(each.centerline.points), each.lanes)
        for row, each in enumerate(options)
    ]
    batch = SceneBatch.of([_as_expected(each) for each in options], plans)
    scene = torch.arange(len(options)).repeat_interleave(PROPOSALS)
    states = track(batch.start[scene], proposals.flatten(0, 1))
    found = SubScores.of(batch, states, scene, as_traffic([each.forecast for each in options], scene))
    columns = {name: outcome.value for name, outcome in found.outcomes.items()}
    product = torch.stack([columns[name] for name in MULTIPLIERS]).prod(0)
    # Proposals are normalized by the best of them, and aren't judged by the past.
    masked = (found.progress * product).view(-1, PROPOSALS).amax(1).repeat_interleave(PROPOSALS)
    columns["ego_progress"] = ego_progress(found.progress, product, masked, torch.ones_like(masked))
    columns["history_comfort"] = torch.ones_like(masked)
    best = epdms(columns).view(-1, PROPOSALS).argmax(1).tolist()
    return [replace(each, trajectory=proposals[row, best[row]]) for row, each in enumerate(plans)]


def _as_expected(options: _Options) -> Scene:
    """The scene with the corrected route, whose lights stay as they are."""
    times = torch.arange(STEPS, dtype=torch.float64) * DT
    red = options.forecast.red.expand(STEPS, -1)
    return replace(options.scene, route=options.route, lights=Lights(times, red, torch.zeros_like(red)))
