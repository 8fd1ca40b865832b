"""Progress along the route. See docs/navsim_score.md §7; officially ``pdm_scorer.py:223-251, 476-490``."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.navsim.geometry.polylines import Polylines
from lightning_cgrpo.navsim.scoring.motion import Motion

LEAST_PROGRESS = 5.0
"""Meters that the expert or the candidate must make for progress to count."""


def raw_progress(centerlines: Polylines, motion: Motion) -> Tensor:
    """``[R]`` meters that the box's center moves along the centerline in 4 s, at least 0."""
    ends = torch.cat([motion.centers[:, 0], motion.centers[:, -1]])
    start, end = centerlines.project(ends, motion.scene.repeat(2)).chunk(2)
    return (end - start).clamp(min=0)


def ego_progress(
    raw: Tensor, product: Tensor, expert_raw: Tensor, expert_product: Tensor, *, masked: bool = False
) -> Tensor:
    """EP: progress by the greater of the candidate's and the expert's, both times their multiplicative sub-scores.

    Officially it isn't multiplied in the numerator: a candidate that collides but is faster than the expert gets 1.

    Args:
        raw: ``[R]`` the candidate's, of `raw_progress`.
        product: ``[R]`` of NC, DAC, DDC and TLC.
        expert_raw: ``[R]`` of the PDM-Closed plan, simulated.
        expert_product: ``[R]``, in the same traffic.
        masked: multiply it in the numerator too.

    Returns:
        ``[R]`` in [0, 1].
    """
    most = torch.maximum(raw * product, expert_raw * expert_product)
    counts = most > LEAST_PROGRESS
    made = raw * product if masked else raw
    return torch.where(counts, (made / torch.where(counts, most, 1)).clamp(0, 1), 1)
