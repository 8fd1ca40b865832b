"""Two-stage scores: first stage, follow-ups, and their product. docs/navsim_score_scenes.md §9."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from navsim_score.columns import EXTENDED_COMFORT, SHORT
from navsim_score.dialects import ONE_STAGE, TWO_STAGES, Dialect
from navsim_score.official_constants import FOLLOW_UP_VARIANCE, LEAST_WEIGHT_SUM
from navsim_score.provenance import scorer_version
from navsim_score.scoring.comfort import paired_comfort
from navsim_score.simulation.interpolation import in_scene
from navsim_score.traffic.traffic import TrafficPolicy

EPDMS, ADE, COMFORT = (list(SHORT).index(name) for name in ("EPDMS", "ADE@4s", "EC"))
"""Places of columns in the order of `SHORT`."""


@dataclass(frozen=True, eq=False)
class Drive:
    """G scored plans of a scene."""

    number: int  # of the scene
    follows: int | None  # number of the first-stage scene; None of the first stage, and before `_link_follow_ups`
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

    def as_json(self) -> dict[str, Any]:
        return {"scenes": self.scenes, "answers": self.answers, "malformed": self.malformed, **self.columns}


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
        """Both stages, their product, and the package that scored; None where unknown."""
        stage_two = None
        both = None
        if self.second is not None:
            stage_two = self.second.as_json()
            both = {"scenes": self.scenes, "EPDMS": self.epdms}
        return {
            "dialect": self.dialect,
            "scorer": scorer_version(),
            "stage_one": self.first.as_json(),
            "stage_two": stage_two,
            "both": both,
        }


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
    for name, of_driver in drives.items():
        first_stage_first = sorted(of_driver, key=lambda drive: (drive.follows is not None, drive.number))
        linked[name] = _link_follow_ups(first_stage_first)
        staged |= any(drive.follows is not None for drive in linked[name])
    full_name = dialect.full_name(traffic, TWO_STAGES if staged else ONE_STAGE)
    return {name: _driver_result(of_driver, dialect, full_name, staged) for name, of_driver in linked.items()}


def summary(drives: Sequence[Drive], dialect: Dialect, traffic: TrafficPolicy) -> Result:
    """`summaries` of one driver."""
    return summaries({"": drives}, dialect, traffic)[""]


@dataclass(frozen=True, eq=False)
class _Scored:
    """A scene's plans with the values ``[G, C]`` that count, in the order of `SHORT`."""

    drive: Drive
    values: Tensor

    @property
    def epdms(self) -> Tensor:
        """``[G]``."""
        return self.values[:, EPDMS]


def _driver_result(drives: Sequence[Drive], dialect: Dialect, name: str, staged: bool) -> Result:
    # Part the scenes into the first stage, and the follow-ups of each first-stage scene.
    first: list[_Scored] = []
    follow_ups: dict[int | None, list[_Scored]] = {}
    for drive, values in zip(drives, _counted_values(drives, dialect, both_frames=staged), strict=True):
        scored = _Scored(drive, values)
        if drive.follows is None:
            first.append(scored)
        else:
            follow_ups.setdefault(drive.follows, []).append(scored)
    # The second stage has a value for each answer of the first; both stages' EPDMS are multiplied.
    by_scene: dict[str, tuple[float, float | None]] = {}
    followers: list[Drive] = []
    seconds: list[Tensor] = []
    products: list[Tensor] = []
    for scene in first:
        both = None
        later = follow_ups.get(scene.drive.number)
        if later:
            second = _second_stage(scene.drive, later)
            product = scene.epdms * second[:, EPDMS]
            followers += [scored.drive for scored in later]
            seconds.append(second)
            products.append(product)
            both = float(product.mean())
        by_scene[scene.drive.name] = float(scene.epdms.nanmean()), both
    stage_one = _stage_means([scored.drive for scored in first], [scored.values for scored in first])
    if not seconds:
        return Result(name, stage_one, by_scene=by_scene)
    stage_two = _stage_means(followers, seconds)
    epdms = float(torch.cat(products).mean())
    return Result(name, stage_one, stage_two, len(seconds), epdms, by_scene)


def _second_stage(first: Drive, follow_ups: Sequence[_Scored]) -> Tensor:
    """``[G, C]``: means over each follow-up's plans, weighted by how near each answer's plan ends to their starts."""
    means = torch.stack([scored.values.mean(0) for scored in follow_ups])  # [J, C]
    starts = torch.stack([scored.drive.start for scored in follow_ups])  # [J, 2]
    weights = follow_up_weights(first.ends, starts)  # [G, J]
    return torch.stack([weight @ means / weight.sum() for weight in weights])


def _link_follow_ups(drives: Sequence[Drive]) -> list[Drive]:
    """Drives of scenes that a first-stage scene names follow it."""
    origin = {}
    for drive in drives:
        if drive.follows is None:
            for name in drive.follow_ups:
                origin[name] = drive.number
    linked = []
    for drive in drives:
        if drive.follows is None and drive.name in origin:
            drive = replace(drive, follows=origin[drive.name])
        linked.append(drive)
    return linked


def _counted_values(drives: Sequence[Drive], dialect: Dialect, *, both_frames: bool) -> list[Tensor]:
    """``[G, C]`` per drive, in the order of `SHORT`: NaN where unknown; malformed plans have 0, but NaN in ADE."""
    # Extended comfort compares a drive with the drive of the frame before.
    by_name = {drive.name: row for row, drive in enumerate(drives)}
    comfort = [torch.full(drive.valid.shape, torch.nan, dtype=torch.float64) for drive in drives]
    for row, drive in enumerate(drives):
        before = by_name.get(drive.previous) if drive.previous is not None else None
        earlier = None if before is None else drives[before].states
        if before is not None and earlier is not None and drive.states is not None:
            comfort[row] = paired_comfort(drive.states, earlier).double()
            if both_frames:
                comfort[before] = comfort[row]
    values = []
    for drive, extended in zip(drives, comfort, strict=True):
        # Well-formed plans have the columns' values.
        columns = {**drive.columns, EXTENDED_COMFORT: extended}
        counted = drive.counted or drive.columns
        columns["epdms"] = dialect.total({**counted, EXTENDED_COMFORT: extended})
        absent = torch.full(drive.valid.shape, torch.nan, dtype=torch.float64)
        table = torch.stack([columns.get(name, absent).double() for name in SHORT.values()], 1)
        # Malformed plans have 0, but in unknown columns and in ADE.
        malformed = torch.full_like(table, torch.nan if dialect.drops_failed else 0.0)
        malformed[:, [name not in columns for name in SHORT.values()]] = torch.nan
        malformed[:, ADE] = torch.nan
        malformed[:, COMFORT] *= torch.where(extended.isnan(), torch.nan, 1.0)
        values.append(torch.where(drive.valid[:, None], table, malformed))
    return values


def _stage_means(drives: Sequence[Drive], values: Sequence[Tensor]) -> StageMeans:
    valid = torch.zeros(0, dtype=torch.bool)
    if drives:
        valid = torch.cat([drive.valid for drive in drives])
    malformed = float((~valid).double().mean()) if len(valid) else 0.0
    columns: dict[str, float | None] = dict.fromkeys(SHORT)
    if values:
        means = torch.cat(list(values)).nanmean(0).tolist()
        for name, mean in zip(SHORT, means, strict=True):
            if not math.isnan(mean):
                columns[name] = mean
    return StageMeans(len(drives), len(valid), malformed, columns)
