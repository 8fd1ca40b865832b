"""Two-stage scores: first stage, follow-ups, and their product. docs/navsim_score.md §9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from navsim_score.columns import EXTENDED_COMFORT, SHORT
from navsim_score.dialects import ONE_STAGE, TWO_STAGES, Dialect
from navsim_score.official_constants import FOLLOW_UP_VARIANCE, LEAST_WEIGHT_SUM
from navsim_score.scoring.comfort import extended_comfort
from navsim_score.simulation.interpolation import in_scene
from navsim_score.traffic.traffic import TrafficPolicy


@dataclass(frozen=True, eq=False)
class Drive:
    """G scored plans of a scene."""

    number: int  # of the scene
    follows: int | None  # number of the first-stage scene; None in the first stage, or if that scene names this scene
    name: str
    previous: str | None  # name of the scene 0.5 s before
    follow_ups: tuple[str, ...]  # names of second-stage scenes
    start: Tensor  # [2] the ego's first position
    ends: Tensor  # [G, 2] last positions of the plans, NaN where malformed
    valid: Tensor  # [G] bool, False where malformed
    columns: Mapping[str, Tensor]  # [G] by official name, and ade; NaN where unknown
    states: Tensor | None  # [G, 41, 11] simulated, for extended comfort
    counted: Mapping[str, Tensor] | None = None  # [G] columns of the total; None: `columns`


@dataclass(frozen=True)
class StageMeans:
    """Means over a stage. Malformed answers count as 0, but not in ADE."""

    scenes: int
    answers: int
    malformed: float  # share of the answers
    columns: Mapping[str, float | None] = field(default_factory=dict)  # by short name; None where always unknown


@dataclass(frozen=True)
class Result:
    """Scores of one driver."""

    dialect: str  # full name
    first: StageMeans
    second: StageMeans | None = None  # means over the first stage's answers of their weighted follow-ups
    scenes: int = 0  # first-stage scenes with follow-ups
    epdms: float | None = None  # mean over answers to these scenes of the product of both stages' EPDMS
    # EPDMS of the first stage and of both, by the scene's name
    by_scene: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Both stages and their product; None where unknown."""
        one, two = (
            means and {"scenes": means.scenes, "answers": means.answers, "malformed": means.malformed, **means.columns}
            for means in (self.first, self.second)
        )
        both = {"scenes": self.scenes, "EPDMS": self.epdms} if two else None
        return {"dialect": self.dialect, "stage_one": one, "stage_two": two, "both": both}


def endpoints(start: Tensor, poses: Tensor) -> Tensor:
    """``[..., 2]`` last positions, in the scene's frame, of plans ``[..., P, 3]`` from poses ``start``."""
    return in_scene(start[..., :3], poses[..., -1, :])[..., :2]


def follow_up_weights(endpoint: Tensor, starts: Tensor) -> Tensor:
    """Weights ``[..., J]`` with sum 1 of follow-ups by distance from the first-stage plan's end.

    Weights are equal if no follow-up starts within about 1.9 m.

    Args:
        endpoint: ``[..., 2]`` of the plan, in the map's frame.
        starts: ``[..., J, 2]`` rear-axle positions at t = 0 of J follow-ups.
    """
    squares = (endpoint[..., None, :] - starts).square().sum(-1)
    weights = torch.exp(-squares / (2 * FOLLOW_UP_VARIANCE))
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > LEAST_WEIGHT_SUM, weights / total, 1 / starts.shape[-2])


def summaries(drives: Mapping[str, Sequence[Drive]], dialect: Dialect, traffic: TrafficPolicy) -> dict[str, Result]:
    """Average each driver's stages; answers to a follow-up are averaged before weighting.

    Scores have two stages if any driver has follow-ups, because the human has none. Extended comfort counts for both
    frames of a pair in two stages, and for the later frame in one stage.

    Raises:
        InputError: two stages, in a dialect of one.
    """
    linked = {}
    staged = False
    for name, some in drives.items():
        first_stage_first = sorted(some, key=lambda drive: (drive.follows is not None, drive.number))
        linked[name] = _linked(first_stage_first)
        staged |= any(drive.follows is not None for drive in linked[name])
    full_name = dialect.full_name(traffic, TWO_STAGES if staged else ONE_STAGE)
    return {name: _summary(some, dialect, full_name, staged) for name, some in linked.items()}


def summary(drives: Sequence[Drive], dialect: Dialect, traffic: TrafficPolicy) -> Result:
    """`summaries` of one driver."""
    return summaries({"": drives}, dialect, traffic)[""]


def _summary(drives: Sequence[Drive], dialect: Dialect, name: str, staged: bool) -> Result:
    values = _values(drives, dialect, both_frames=staged)
    first = [row for row, drive in enumerate(drives) if drive.follows is None]
    after: dict[int | None, list[int]] = {drives[row].number: [] for row in first}
    for row, drive in enumerate(drives):
        if drive.follows in after:
            after[drive.follows].append(row)
    one = _means([drives[row] for row in first], [values[row] for row in first])
    score = list(SHORT).index("EPDMS")
    seconds: list[Tensor] = []
    products: list[Tensor] = []
    by_scene: dict[str, tuple[float, float | None]] = {}
    followers: list[Drive] = []
    for row in first:
        rows = after[drives[row].number]
        scene = drives[row].name
        alone = float(values[row][:, score].nanmean())
        by_scene[scene] = alone, None
        if not rows:
            continue
        answers = len(products)
        followers += [drives[other] for other in rows]
        means = torch.stack([values[other].mean(0) for other in rows])
        # Each answer weights the follow-ups by how near its plan ends to where they start.
        weights = follow_up_weights(drives[row].ends, torch.stack([drives[other].start for other in rows]))
        for answer, weight in zip(values[row], weights, strict=True):
            seconds.append(weight @ means / weight.sum())
            products.append(answer[score] * seconds[-1][score])
        by_scene[scene] = alone, float(torch.stack(products[answers:]).mean())
    if not seconds:
        return Result(name, one, by_scene=by_scene)
    two = _means(followers, [torch.stack(seconds)])
    both = float(torch.stack(products).mean())
    return Result(name, one, two, sum(map(bool, after.values())), both, by_scene)


def _linked(drives: Sequence[Drive]) -> list[Drive]:
    """Drives of scenes that a first-stage scene names follow it."""
    origin = {}
    for drive in drives:
        if drive.follows is None:
            for name in drive.follow_ups:
                origin[name] = drive.number
    linked = []
    for drive in drives:
        named = drive.follows is None and drive.name in origin
        linked.append(replace(drive, follows=origin[drive.name]) if named else drive)
    return linked


def _values(drives: Sequence[Drive], dialect: Dialect, *, both_frames: bool) -> list[Tensor]:
    """``[G, C]`` per drive, in the order of `SHORT`: NaN where unknown; malformed plans have 0, but NaN in ADE."""
    by_name = {drive.name: row for row, drive in enumerate(drives)}
    comfort = [torch.full(drive.valid.shape, torch.nan, dtype=torch.float64) for drive in drives]
    for row, drive in enumerate(drives):
        before = by_name.get(drive.previous) if drive.previous is not None else None
        earlier = None if before is None else drives[before].states
        if before is not None and earlier is not None and drive.states is not None:
            comfort[row] = extended_comfort(drive.states, earlier).double()
            if both_frames:
                comfort[before] = comfort[row]
    values = []
    for drive, extended in zip(drives, comfort, strict=True):
        columns = {**drive.columns, EXTENDED_COMFORT: extended}
        columns["epdms"] = dialect.total({**(drive.counted or drive.columns), EXTENDED_COMFORT: extended})
        absent = torch.full(drive.valid.shape, torch.nan, dtype=torch.float64)
        table = torch.stack([columns.get(name, absent).double() for name in SHORT.values()], 1)
        malformed = torch.full_like(table, torch.nan if dialect.drops_failed else 0.0)
        malformed[:, [name not in columns for name in SHORT.values()]] = torch.nan
        malformed[:, list(SHORT).index("ADE@4s")] = torch.nan
        malformed[:, list(SHORT).index("EC")] *= torch.where(extended.isnan(), torch.nan, 1.0)
        values.append(torch.where(drive.valid[:, None], table, malformed))
    return values


def _means(drives: Sequence[Drive], values: Sequence[Tensor]) -> StageMeans:
    valid = torch.cat([drive.valid for drive in drives]) if drives else torch.zeros(0, dtype=torch.bool)
    means = torch.cat(list(values)).nanmean(0).tolist() if values else [torch.nan] * len(SHORT)
    columns = {name: None if mean != mean else mean for name, mean in zip(SHORT, means, strict=True)}
    return StageMeans(len(drives), len(valid), float((~valid).double().mean()) if len(valid) else 0.0, columns)
