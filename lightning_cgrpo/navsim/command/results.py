"""A scored scene: rows for JSON, and which candidates of several scenes belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_cgrpo.navsim.aggregation import EXTENDED_COMFORT, MULTIPLIERS, WEIGHTS
from lightning_cgrpo.navsim.command.trajectory_file import Candidate
from lightning_cgrpo.navsim.scorer import Scores
from lightning_cgrpo.scenes.scene import Scene

SUB_SCORES = (*MULTIPLIERS, *WEIGHTS)
NOT_FINITE = "poses: Expected a trajectory that can be driven, but got a simulated motion that isn't finite."


class Picture(NamedTuple):
    """What a picture takes besides the scores.

    Args:
        scene: the scene.
        centerline: ``[C, 2]`` along which progress was measured.
        hits: ``[n, 4, 2]`` for each candidate, the boxes that it touched when it first collided.
    """

    scene: Scene
    centerline: Tensor
    hits: Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Result:
    """The scores of a scene. The scene itself, of megabytes, is kept for pictures only.

    Args:
        stem: the scene file's name without its suffix.
        name: the scene's.
        start: ``[3]`` the ego's pose at t = 0.
        previous: the name of the scene before, if the file has one.
        follow_ups: names of second-stage scenes, as the file has them.
        candidates: R, as they were given.
        poses: ``[R, 8, 3]``, NaN where a candidate can't be scored.
        scores: of the candidates.
        picture: if one will be drawn.
    """

    stem: str
    name: str
    start: Tensor
    previous: str | None
    follow_ups: tuple[str, ...]
    candidates: Sequence[Candidate]
    poses: Tensor
    scores: Scores
    picture: Picture | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One per candidate, without NaN; docs/driving.md has the keys.

        A malformed answer violates everything: where a candidate can't be scored, its scores are 0.
        """
        scores, columns = self.scores, self.scores.columns
        numbers = {name: columns[name] for name in SUB_SCORES} | {
            "multiplicative_metrics_prod": scores.multiplicative_metrics_prod,
            "pdm_score": scores.pdm_score,
            "epdms": scores.epdms,
            "progress_raw_m": scores.progress,
            "pdm_progress_raw_m": scores.pdm_progress,
        }
        finite = scores.valid & scores.epdms.isfinite()
        lists = {name: column.where(finite, column.new_zeros(())).tolist() for name, column in numbers.items()}
        before = columns[EXTENDED_COMFORT].tolist() if EXTENDED_COMFORT in columns else [None] * len(self.candidates)
        valid, comfort = finite.tolist(), (scores.comfort & finite[:, None]).tolist()
        return [
            {
                "tag": candidate.tag,
                "valid": valid[row],
                "error": candidate.error or (None if valid[row] else NOT_FINITE),
                **{name: values[row] for name, values in lists.items()},
                EXTENDED_COMFORT: None if before[row] != before[row] else before[row],  # NaN differs from itself
                "comfort": comfort[row],
            }
            for row, candidate in enumerate(self.candidates)
        ]

    def label(self, row: int) -> str:
        return label([candidate.tag for candidate in self.candidates], row)


def label(tags: Sequence[str | None], row: int) -> str:
    """What to call a candidate: its tag, or its number where it has none or others have the same."""
    tag = tags[row]
    return tag if tag and tags.count(tag) == 1 else str(row)


class Names:
    """Finds results as scenes name each other: by the file's stem, or by the scene's name."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = {result.name: result for result in results} | {result.stem: result for result in results}

    def get(self, name: Any) -> Result | None:
        """None if there is none of that name, or it is no name."""
        return self.results.get(name) if isinstance(name, str) else None


def partners(result: Result, other: Result) -> Tensor:
    """``[R]`` int64, the candidate of another scene that is of the same planner, -1 if there is none.

    It is the one of the same tag; where tags are missing or not unique, the one of the same number.
    """
    tags, theirs = ([candidate.tag for candidate in one.candidates] for one in (result, other))
    if all(None not in names and len(set(names)) == len(names) for names in (tags, theirs)):
        rows = {tag: row for row, tag in enumerate(theirs)}
        return torch.tensor([rows.get(tag, -1) for tag in tags])
    return torch.tensor([row if row < len(theirs) else -1 for row in range(len(tags))])


def take(scores: Scores, rows: slice | Tensor) -> Scores:
    """Some rows of scores."""

    def taken(value: Any) -> Any:
        return {name: column[rows] for name, column in value.items()} if isinstance(value, dict) else value[rows]

    return Scores(**{field.name: taken(getattr(scores, field.name)) for field in fields(scores)})
