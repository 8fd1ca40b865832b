"""Sub-scores of PDMS, the score of NAVSIM 1.1, from simulated drives (docs/navsim_score_scenes.md §19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.scene_batch import ExpertPlan, SceneBatch
from navsim_score.columns import COMFORT, EGO_PROGRESS, PDMS_MULTIPLIERS, PDMS_WEIGHTS, SHORT
from navsim_score.expert.forecast import Forecast, as_traffic
from navsim_score.expert.pdm_closed import best_of_scene
from navsim_score.official_constants import LEAST_PROGRESS
from navsim_score.scoring.comfort import plain_comfort
from navsim_score.scoring.sub_scores import SubScores
from navsim_score.simulation.simulate import track
from navsim_score.traffic.traffic import TrafficRollouts

STEPS_SEEN = 51
"""Steps of 0.1 s with agents; NAVSIM 1.1 looks 1 s further than 4 s, for TTC."""


class PdmsColumns:
    """Computes the columns of PDMS for rows that are already simulated.

    Traffic is the log, with the agents that touch the ego at t = 0.

    Args:
        batch: the scenes.
        plans: of the expert that chose by PDMS (`by_pdms`).
    """

    def __init__(self, batch: SceneBatch, plans: Sequence[ExpertPlan]) -> None:
        self.batch = batch
        like = batch.start
        self.agents = AgentTracks.logged(batch.scenes, like.device, STEPS_SEEN)
        poses = torch.stack([plan.trajectory for plan in plans]).to(like)
        scene = torch.arange(len(batch), device=like.device)
        columns, raw = _pdms_columns(batch, track(like, poses), scene, TrafficRollouts.of(self.agents, scene))
        self.expert = raw * pdms_product(columns)

    def __call__(self, states: Tensor, scene: Tensor) -> dict[str, Tensor]:
        """Columns ``[R]`` of `PDMS_MULTIPLIERS` and `PDMS_WEIGHTS`, of states ``[R, 41, 11]`` in scenes ``[R]``."""
        columns, raw = _pdms_columns(self.batch, states, scene, TrafficRollouts.of(self.agents, scene))
        return columns | {EGO_PROGRESS: masked_progress(raw, pdms_product(columns), self.expert[scene])}


def _pdms_columns(
    batch: SceneBatch, states: Tensor, scene: Tensor, traffic: TrafficRollouts
) -> tuple[dict[str, Tensor], Tensor]:
    """All columns ``[R]`` but EP, and raw progress ``[R]`` in meters."""
    scores = SubScores.of(batch, states, scene, traffic)
    columns = {SHORT[name]: scores.outcomes[SHORT[name]].value for name in ("NC", "DAC", "TTC")}
    return columns | {COMFORT: plain_comfort(states).all(-1).to(states)}, scores.progress


def masked_progress(raw: Tensor, mask: Tensor, expert: Tensor) -> Tensor:
    """EP ``[R]``: raw progress times ``mask``, over the larger of this and the expert's.

    Up to 5 m, EP is 1, but 0 where ``mask`` is 0.
    """
    masked = raw * mask
    most = torch.maximum(masked, expert)
    share = masked / most.clamp(min=LEAST_PROGRESS)
    return torch.where(most > LEAST_PROGRESS, share, (mask != 0).to(raw))


def pdms_product(columns: Mapping[str, Tensor]) -> Tensor:
    """``[R]`` NC * DAC."""
    return torch.stack([columns[name] for name in PDMS_MULTIPLIERS]).prod(0)


def pdms(columns: Mapping[str, Tensor]) -> Tensor:
    """``[R]`` NC * DAC * (5 EP + 5 TTC + 2 C) / 12."""
    total = torch.stack([weight * columns[name] for name, weight in PDMS_WEIGHTS.items()]).sum(0)
    return pdms_product(columns) * total / sum(PDMS_WEIGHTS.values())


def by_pdms(batch: SceneBatch, states: Tensor, scene: Tensor, forecasts: Sequence[Forecast]) -> Tensor:
    """PDMS ``[R]`` of proposals: the expert's choice in NAVSIM 1.1."""
    columns, raw = _pdms_columns(batch, states, scene, as_traffic(forecasts, scene, STEPS_SEEN))
    mask = pdms_product(columns)
    progress = masked_progress(raw, mask, best_of_scene(raw * mask))
    return pdms(columns | {EGO_PROGRESS: progress})
