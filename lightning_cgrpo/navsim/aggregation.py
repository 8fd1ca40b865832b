"""From sub-scores to scores: of one drive, of one with a human to compare with, and of two stages.

docs/navsim_score.md §8 and §9; officially pdm_score.py, run_pdm_score.py and scoring/scene_aggregator.py. Columns are
tensors of one shape under the official names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.navsim.simulation.interpolation import in_scene

MULTIPLIERS = (
    "no_at_fault_collisions",
    "drivable_area_compliance",
    "driving_direction_compliance",
    "traffic_light_compliance",
)
WEIGHTS = {
    "ego_progress": 5.0,
    "time_to_collision_within_bound": 5.0,
    "lane_keeping": 2.0,
    "history_comfort": 2.0,
}
EXTENDED_COMFORT = "two_frame_extended_comfort"
EXTENDED_COMFORT_WEIGHT = 2.0
SIGMA_SQUARED = 0.1
"""Of the distances to follow-ups, in square meters."""
NO_WEIGHT = 1e-8
"""A sum of weights of at most this is none."""


def multiplicative_metrics_prod(columns: Mapping[str, Tensor]) -> Tensor:
    """The product of the multipliers."""
    return torch.stack([columns[name] for name in MULTIPLIERS]).prod(0)


def weighted_average(columns: Mapping[str, Tensor]) -> Tensor:
    """The mean of the weighted terms (WAT).

    Its denominator is 14, or 16 where there is extended comfort, for which there must be a previous frame: the column
    may be missing, or NaN in some rows.
    """
    total = torch.stack([weight * columns[name] for name, weight in WEIGHTS.items()]).sum(0)
    count = sum(WEIGHTS.values())
    if EXTENDED_COMFORT not in columns:
        return total / count
    comfort = columns[EXTENDED_COMFORT]
    extended = (total + EXTENDED_COMFORT_WEIGHT * comfort) / (count + EXTENDED_COMFORT_WEIGHT)
    return torch.where(comfort.isnan(), total / count, extended)


def epdms(columns: Mapping[str, Tensor]) -> Tensor:
    """The Extended PDM Score: `multiplicative_metrics_prod` times `weighted_average`."""
    return multiplicative_metrics_prod(columns) * weighted_average(columns)


def human_filtered(columns: Mapping[str, Tensor], human: Mapping[str, Tensor], applies: Tensor) -> dict[str, Tensor]:
    """What a human fails completely isn't held against a candidate.

    Args:
        columns: the candidates' sub-scores.
        human: the scene's human's, in the same rows; columns that it hasn't stay.
        applies: bool, where there is a human: not in synthetic scenes.

    Returns:
        The columns, 1 where the human's value is exactly 0.
    """
    return {
        name: torch.where(applies & (human[name] == 0), 1.0, value) if name in human else value
        for name, value in columns.items()
    }


def endpoints(start: Tensor, poses: Tensor) -> Tensor:
    """Where plans end, which is what `follow_up_weights` asks for (and not where the simulated drive ends).

    Args:
        start: ``[..., 3 or more]`` x, y, yaw of the ego at t = 0.
        poses: ``[..., P, 3]`` in the ego's frame.

    Returns:
        ``[..., 2]`` in the frame of ``start``.
    """
    return in_scene(start[..., :3], poses[..., -1, :])[..., :2]


def follow_up_weights(endpoint: Tensor, starts: Tensor, sigma_squared: float = SIGMA_SQUARED) -> Tensor:
    """How much each of J follow-ups counts: it should start where the plan of the first stage ends.

    Args:
        endpoint: ``[..., 2]`` of the first stage's plan, in the map's frame.
        starts: ``[..., J, 2]`` the rear axle's first position in each.
        sigma_squared: of the Gaussian kernel, in square meters.

    Returns:
        ``[..., J]``, which sum up to 1; all the same if none starts near (about 1.9 m).
    """
    squares = (endpoint[..., None, :] - starts).square().sum(-1)
    weights = torch.exp(-squares / (2 * sigma_squared))
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > NO_WEIGHT, weights / total, 1 / starts.shape[-2])


@dataclass(frozen=True)
class Group:
    """A frame of the first stage and its follow-ups, in C columns (sub-scores, scores).

    Args:
        first: ``[C]``.
        follow_ups: ``[J, C]``.
        weights: ``[J]``.
    """

    first: Tensor
    follow_ups: Tensor
    weights: Tensor

    @property
    def second(self) -> Tensor:
        """``[C]`` of the second stage; NaN without follow-ups."""
        return self.weights @ self.follow_ups / self.weights.sum()


@dataclass(frozen=True)
class TwoStageScores:
    """Means over groups, each ``[C]``.

    Args:
        stage_one: of the first stage.
        stage_two: of the second.
        combined: of their products.
        left_out: ``[C]`` int64, the pairs that aren't in ``combined``, because one of their frames is NaN: it failed.
    """

    stage_one: Tensor
    stage_two: Tensor
    combined: Tensor
    left_out: Tensor


def two_stage_scores(pairs: Sequence[tuple[Group, Group]]) -> TwoStageScores:
    """The scores of a benchmark.

    Args:
        pairs: of frames 0.5 s apart (now, previous), at least one.
    """
    groups = [group for pair in pairs for group in pair]
    first = torch.stack([group.first for group in groups])
    second = torch.stack([group.second for group in groups])
    products = (first * second).unflatten(0, (len(pairs), 2)).mean(1)
    return TwoStageScores(first.nanmean(0), second.nanmean(0), products.nanmean(0), products.isnan().sum(0))
