"""Progress along the route (docs/navsim_score.md §7)."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.polylines import Polylines
from lightning_cgrpo.navsim.official_constants import LEAST_PROGRESS
from lightning_cgrpo.navsim.scoring.motion import Motion


def raw_progress(centerlines: Polylines, motion: Motion) -> Tensor:
    """``[R]`` meters, at least 0, of the box's center along the centerline in 4 s."""
    ends = torch.cat([motion.centers[:, 0], motion.centers[:, -1]])
    start, end = centerlines.project(ends, motion.scene.repeat(2)).chunk(2)
    return (end - start).clamp(min=0)


def ego_progress(
    raw: Tensor, product: Tensor, expert_raw: Tensor, expert_product: Tensor, *, masked: bool = False
) -> Tensor:
    """EP ``[R]``: raw progress over the larger of the candidate's and the expert's masked progress, in [0, 1].

    EP is 1 where both masked progresses are at most 5 m.

    Args:
        raw: ``[R]`` `raw_progress`.
        product: ``[R]`` NC * DAC * DDC * TLC, which masks (multiplies) progress.
        expert_raw: ``[R]`` of the simulated expert plan.
        expert_product: ``[R]`` of the expert plan in the same traffic.
        masked: mask the numerator too, unofficially.
    """
    most = torch.maximum(raw * product, expert_raw * expert_product)
    counts = most > LEAST_PROGRESS
    made = raw * product if masked else raw
    return torch.where(counts, (made / torch.where(counts, most, 1)).clamp(0, 1), 1)
