"""Records of scenes as one scorer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.scene_batch import SceneBatch, padded_lines
from navsim_score.batch.surfaces import Surfaces
from navsim_score.columns import COLUMNS
from navsim_score.geometry.polygons import Polygons
from navsim_score.geometry.polylines import Polylines
from navsim_score.geometry.ranges import starts
from navsim_score.scorer import Expert, Scorer
from navsim_score.scoring.areas import EgoAreas
from navsim_score.scoring.comfort import HistoryComfort
from navsim_score.scoring.motion import Motion
from navsim_score.store.record import Record


def joined(records: Sequence[Record], device: torch.device | str, human_filter: bool = True) -> Scorer:
    """A scorer of S scenes; row i of its scenes is record i.

    Args:
        device: to compute on.
        human_filter: set sub-scores to 1 where the human's is 0, as officially.
    """

    def cat(name: str) -> Tensor:
        return torch.cat([record[name] for record in records]).to(device)

    def padded(name: str, filler: int = 0) -> Tensor:
        rows = [record[name] for record in records]
        return pad_sequence(rows, batch_first=True, padding_value=filler).to(device)

    def chained(name: str) -> Tensor:
        """Starts of consecutive ranges over all scenes, of each scene's own starts."""
        return starts(torch.cat([record[name].diff() for record in records])).to(device)

    polygons = Polygons(
        bounds=cat("bounds"),
        upright=cat("upright"),
        low=cat("low"),
        scale=cat("scale"),
        first_slab=chained("first_slab"),
        ranges=cat("ranges"),
        first_edge=chained("first_edge"),
        edges=cat("edges"),
        outline=cat("outline"),
        first_outline=chained("first_outline"),
    )
    flags = [record["flags"] for record in records]
    reds = [record["red"] for record in records]
    surfaces = Surfaces.padded(polygons, flags, reds, device)
    agents = AgentTracks(
        poses=padded("agent_poses"),
        speeds=padded("agent_speeds"),
        sizes=padded("agent_sizes"),
        present=padded("agent_present"),
        types=padded("agent_types", -1),
        first_speed=padded("agent_first_speed"),
    )
    lines = padded_lines([record["centerline"] for record in records])
    batch = SceneBatch((), cat("start"), agents, surfaces, Polylines.of(lines.to(device)), cat("plan"))
    comfort = HistoryComfort.of_pasts([record["past"] for record in records], device)
    states = cat("expert_states")
    motion = Motion.of(states, torch.arange(len(records), device=states.device))
    progress, product = cat("expert_progress").unbind(1)
    areas = EgoAreas(*cat("expert_areas").unbind(1))
    expert = Expert(motion, areas, progress, product)
    human = None
    if human_filter:
        human = dict(zip(COLUMNS, cat("human").unbind(1), strict=True))
    return Scorer.prepared(batch, comfort, expert, human)
