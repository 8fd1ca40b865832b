"""PDM-Closed, the official expert: the best proposal in a forecast.

docs/navsim_score_scenes.md §12; officially abstract_pdm_closed_planner.py and ``metric_cache_processor.py:56-69``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from driving_scenes.scene import Lights, Scene
from navsim_score.batch.scene_batch import ExpertPlan, SceneBatch
from navsim_score.columns import MULTIPLIERS, epdms
from navsim_score.expert.forecast import Forecast, as_traffic
from navsim_score.expert.proposals import PROPOSALS, propose
from navsim_score.route.lane_ahead import LaneAhead, lane_ahead
from navsim_score.scoring.lanes import ego_progress
from navsim_score.scoring.sub_scores import SubScores
from navsim_score.simulation.simulate import track
from navsim_score.simulation.timing import DT, STEPS

Choice = Callable[[SceneBatch, Tensor, Tensor, Sequence[Forecast]], Tensor]
"""Scores ``[R]`` of simulated proposals: states ``[R, 41, 11]`` in scenes ``[R]``, all of a scene in a row."""
SCENES_AT_ONCE = 64  # scenes whose proposals are scored together; a larger number only takes more memory


def by_epdms(batch: SceneBatch, states: Tensor, scene: Tensor, forecasts: Sequence[Forecast]) -> Tensor:
    """EPDMS: the choice of NAVSIM 2."""
    scores = SubScores.of(batch, states, scene, as_traffic(forecasts, scene))
    columns = {name: outcome.value for name, outcome in scores.outcomes.items()}
    product = torch.stack([columns[name] for name in MULTIPLIERS]).prod(0)
    # Progress is relative to the best proposal, and comfort ignores the past.
    masked = best_of_scene(scores.progress * product)
    columns["ego_progress"] = ego_progress(scores.progress, product, masked, torch.ones_like(masked))
    columns["history_comfort"] = torch.ones_like(masked)
    return epdms(columns)


def best_of_scene(values: Tensor) -> Tensor:
    """``[R]`` the largest of the proposals' values ``[R]`` in each row's scene."""
    return values.view(-1, PROPOSALS).amax(1).repeat_interleave(PROPOSALS)


def plan(scenes: Sequence[Scene], choice: Choice = by_epdms) -> list[ExpertPlan]:
    """Plan each scene from information at t = 0.

    Args:
        choice: scores the proposals.

    Raises:
        SceneError: an empty route, or a route without lanes.
    """
    plans: list[ExpertPlan] = []
    for first in range(0, len(scenes), SCENES_AT_ONCE):
        ahead = [lane_ahead(scene) for scene in scenes[first : first + SCENES_AT_ONCE]]
        forecasts = [Forecast.of(lanes.road, lanes.route_lanes) for lanes in ahead]
        plans += _best_plans(ahead, forecasts, choice)
    return plans


def _best_plans(ahead: Sequence[LaneAhead], forecasts: Sequence[Forecast], choice: Choice) -> list[ExpertPlan]:
    proposals = torch.from_numpy(propose(ahead, forecasts))  # [S, PROPOSALS, 41, 3]
    # A batch needs plans; the first proposals stand in for the best.
    plans = []
    expected_scenes = []
    for row, (lanes, forecast) in enumerate(zip(ahead, forecasts, strict=True)):
        plans.append(ExpertPlan(proposals[row, 0], torch.from_numpy(lanes.path.points), lanes.route_lanes))
        expected_scenes.append(_as_expected(lanes, forecast))
    batch = SceneBatch.of(expected_scenes, plans)
    # All proposals are simulated and scored together.
    scene = torch.arange(len(plans)).repeat_interleave(PROPOSALS)
    states = track(batch.start[scene], proposals.flatten(0, 1))
    scores = choice(batch, states, scene, forecasts)
    best = scores.view(-1, PROPOSALS).argmax(1).tolist()
    return [replace(first, trajectory=proposals[row, best[row]]) for row, first in enumerate(plans)]


def _as_expected(lanes: LaneAhead, forecast: Forecast) -> Scene:
    """The scene with corrected route and constant lights."""
    times = torch.arange(STEPS, dtype=torch.float64) * DT
    red = forecast.red.expand(STEPS, -1)
    return replace(lanes.road.scene, route=lanes.route, lights=Lights(times, red, torch.zeros_like(red)))
