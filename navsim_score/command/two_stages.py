"""Two-stage scores of scenes with follow-ups (navsim_score/README.md, "Two stages")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from navsim_score.command.scored_scene import ScoredScene, partner_rows, scene_finder
from navsim_score.dialects import Dialect
from navsim_score.scoring.motion import take
from navsim_score.tables import label
from navsim_score.traffic.traffic import TrafficPolicy
from navsim_score.two_stage import Drive, Result, endpoints, summaries


def two_stages(
    scenes: Sequence[ScoredScene], dialect: Dialect, traffic: TrafficPolicy
) -> tuple[dict[str, Result], list[str]]:
    """Scores of both stages by candidate (tag or number), and notes on incomplete groups.

    A scene with `follow_ups` gives two groups: the scene and its follow-ups, and the scenes 0.5 s before each of these.
    """
    find = scene_finder(scenes)
    notes = []
    drives: dict[str, list[Drive]] = {}
    before = [find(scene.previous) for scene in scenes]
    for now in scenes:
        # The previous scene may name its follow-ups too, which are those of the second group.
        if not now.follow_ups or (now.previous is None and any(now is other for other in before)):
            continue
        frames = _find_frames(now, find)
        if isinstance(frames, str):
            notes.append(f"The two stages of '{now.stem}' are left out: there are no scores of {frames}.")
            continue
        rows = torch.stack([partner_rows(now, frame) for frame in frames])
        for row in range(len(now.candidates)):
            name = label(now.tags, row)
            if (rows[:, row] < 0).any():
                notes.append(f"The two stages of '{now.stem}' are left out for {name}: a scene has no such candidate.")
            else:
                driven = drives.setdefault(name, [])
                driven += _alternating_drives(frames, rows[:, row].tolist(), len(driven), dialect)
    return summaries(drives, dialect, traffic), notes


def _find_frames(now: ScoredScene, find: Callable[[Any], ScoredScene | None]) -> list[ScoredScene] | str:
    """The scene and its previous scene, then the same per follow-up; or words that name a missing scene."""
    frames = []
    for name in (now.stem, *now.follow_ups):
        frame = find(name)
        if frame is None:
            return f"the scene {name!r}"
        before = find(frame.previous)
        if before is None:
            missing = "which names no previous one" if frame.previous is None else repr(frame.previous)
            return f"the scene before '{frame.stem}', {missing}"
        frames += [frame, before]
    return frames


def _alternating_drives(
    frames: Sequence[ScoredScene], rows: Sequence[int], start: int, dialect: Dialect
) -> list[Drive]:
    """Drives of a candidate in frames that alternate: a scene, then the scene 0.5 s before it."""
    drives = []
    for place, (frame, row) in enumerate(zip(frames, rows, strict=True)):
        scores = take(frame.scores, slice(row, row + 1))
        number = start + place
        is_first_stage = place < 2
        is_later_frame = place % 2 == 0
        drives.append(
            Drive(
                number=number,
                follows=None if is_first_stage else start + place % 2,
                name=str(number),
                previous=str(number + 1) if is_later_frame else None,
                follow_ups=(),
                start=frame.start[:2],
                ends=endpoints(frame.start, frame.poses[row, None]),
                valid=scores.valid,
                columns={**dialect.shown(scores), "ade": torch.full((1,), torch.nan)},
                states=scores.states,
                counted=dialect.counted(scores),
            )
        )
    return drives
