"""A scored scene: rows for JSON, and partners in other scenes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from navsim_score.columns import COLUMNS, EXTENDED_COMFORT
from navsim_score.command.trajectory_file import Candidate
from navsim_score.dialects import Dialect
from navsim_score.scorer import Scores

NOT_FINITE = "poses: Expected a trajectory that can be driven, but got a simulated motion that isn't finite."


class Picture(NamedTuple):
    """Input of a picture besides the scores."""

    scene: Scene
    centerline: Tensor  # [C, 2] along which progress was measured
    hits: Sequence[Tensor]  # [n, 4, 2] for each candidate, the boxes touched at its first collision


@dataclass(frozen=True, eq=False)
class ScoredScene:
    """Scores of R candidates in a scene; only `picture` keeps the scene (megabytes)."""

    stem: str  # the scene file's name without its suffix
    name: str
    start: Tensor  # [3] the ego's pose at t = 0
    previous: str | None  # name of the scene 0.5 s before
    follow_ups: tuple[str, ...]  # names of second-stage scenes
    candidates: Sequence[Candidate]  # in the order of the file
    poses: Tensor  # [R, P, 3], NaN where malformed
    scores: Scores
    totals: Mapping[str, Dialect]  # by full name, the first of `epdms`
    provenance: str  # of the scene and the score
    picture: Picture | None = None
    words: Sequence[Sequence[str]] = ()  # for each candidate, why it got its score; only of the explained scene

    def rows(self) -> list[dict[str, Any]]:
        """One JSON object per candidate, with scores of 0 if invalid; navsim_score/README.md lists the keys."""
        scores = self.scores
        columns = {name: scores.columns[name] for name in COLUMNS}
        columns["multiplicative_metrics_prod"] = scores.multiplicative_metrics_prod
        columns["pdm_score"] = scores.pdm_score
        columns["epdms"] = scores.epdms
        columns["progress_raw_m"] = scores.progress
        columns["pdm_progress_raw_m"] = scores.pdm_progress
        totals = {name: dialect(scores) for name, dialect in self.totals.items()}
        unknown = torch.full_like(scores.progress, torch.nan)
        extended_comfort = scores.columns.get(EXTENDED_COMFORT, unknown)
        finite = scores.valid & scores.epdms.isfinite()
        rows = []
        for row, candidate in enumerate(self.candidates):
            valid = bool(finite[row])
            error = candidate.error
            if not error:
                error = None if valid else NOT_FINITE
            content: dict[str, Any] = {"tag": candidate.tag, "valid": valid, "error": error}
            for name, column in columns.items():
                content[name] = float(column[row]) if valid else 0.0
            content["dialect"] = next(iter(self.totals))
            content["provenance"] = self.provenance
            content["scores"] = {}
            for name, dialect in self.totals.items():
                failed = None if dialect.drops_failed else 0.0
                content["scores"][name] = float(totals[name][row]) if valid else failed
            compared = not extended_comfort[row].isnan()
            content[EXTENDED_COMFORT] = float(extended_comfort[row]) if compared else None
            content["comfort"] = (scores.comfort[row] & finite[row]).tolist()
            rows.append(content)
        return rows

    @property
    def tags(self) -> list[str | None]:
        return [candidate.tag for candidate in self.candidates]


def scene_finder(scenes: Sequence[ScoredScene]) -> Callable[[Any], ScoredScene | None]:
    """Return a function that looks up a scene by file stem or name; None if unknown."""
    by_name = {scene.name: scene for scene in scenes}
    by_name |= {scene.stem: scene for scene in scenes}

    def find(name: Any) -> ScoredScene | None:
        return by_name.get(name) if isinstance(name, str) else None

    return find


def partner_rows(scene: ScoredScene, other: ScoredScene) -> Tensor:
    """``[R]`` int64: rows in another scene by tag, or by number unless all tags are unique; -1 without a partner."""
    tags = scene.tags
    other_tags = other.tags
    if _are_unique(tags) and _are_unique(other_tags):
        row_of = {tag: row for row, tag in enumerate(other_tags)}
        return torch.tensor([row_of.get(tag, -1) for tag in tags])
    rows = torch.arange(len(tags))
    return torch.where(rows < len(other_tags), rows, -1)


def _are_unique(tags: Sequence[str | None]) -> bool:
    return None not in tags and len(set(tags)) == len(tags)
