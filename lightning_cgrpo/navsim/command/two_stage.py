"""Two-stage scores of scored scenes: pseudo closed loop. See NAVSIM.md 1.9; officially ``run_pdm_score.py:221-322``.

A scene that names its `follow_ups` and its `previous` begins two groups, its own and that of the scene before, whose
follow-ups are those that the scene's follow-ups name as `previous`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_cgrpo.navsim.aggregation import Group, TwoStageScores, endpoints, follow_up_weights, two_stage_scores
from lightning_cgrpo.navsim.command.results import Names, Result, partners, take
from lightning_cgrpo.navsim.scoring.comfort import extended_comfort


def two_stages(results: Sequence[Result]) -> tuple[dict[str, TwoStageScores], list[str]]:
    """The EPDMS of both stages (one column), by candidate: of its tag, or its number where it has none.

    Returns:
        The scores, and notes on the groups that are left out.
    """
    names, notes = Names(results), []
    pairs: dict[str, list[tuple[Group, Group]]] = {}
    before = [names.get(result.previous) for result in results]
    for now in results:
        # The first scene of a pair has follow-ups as well, which belong to the second's group.
        if not now.follow_ups or (now.previous is None and any(now is other for other in before)):
            continue
        frames = _frames(now, names)
        if isinstance(frames, str):
            notes.append(f"The two stages of '{now.stem}' are left out: there are no scores of {frames}.")
            continue
        rows = torch.stack([partners(now, frame) for both in frames for frame in both]).unflatten(0, (-1, 2))
        for row in range(len(now.candidates)):
            label = now.label(row)
            if (rows[..., row] < 0).any():
                notes.append(f"The two stages of '{now.stem}' are left out for {label}: a scene has no such candidate.")
            else:
                pairs.setdefault(label, []).append(_pair(frames, rows[..., row]))
    return {label: two_stage_scores(of) for label, of in pairs.items()}, notes


Frames = list[tuple[Result, Result]]
"""Scenes and the ones before: of the first stage, and of each follow-up."""


def _frames(now: Result, names: Names) -> Frames | str:
    """The frames of a group, or the name of one that isn't there."""
    frames = []
    for name in (now.stem, *now.follow_ups):
        frame = names.get(name)
        if frame is None:
            return f"the scene {name!r}"
        before = names.get(frame.previous)
        if before is None:
            before_it = "which names no previous one" if frame.previous is None else repr(frame.previous)
            return f"the scene before '{frame.stem}', {before_it}"
        frames.append((frame, before))
    return frames


def _pair(frames: Frames, rows: Tensor) -> tuple[Group, Group]:
    """The groups (now, previous) of a candidate, which is in these ``[1 + J, 2]`` rows of the frames."""
    scores = torch.stack([_epdms(both, of) for both, of in zip(frames, rows, strict=True)])
    groups = []
    for side in range(2):
        first = frames[0][side]
        end = endpoints(first.start, first.poses[rows[0, side]])
        starts = torch.stack([both[side].start[:2] for both in frames[1:]])
        groups.append(Group(scores[:1, side], scores[1:, side, None], follow_up_weights(end, starts)))
    return groups[0], groups[1]


def _epdms(frames: tuple[Result, Result], rows: Tensor) -> Tensor:
    """``[2]``, with the extended comfort that holds for both; 0 where a candidate could not be scored."""
    now, before = (take(frame.scores, row[None]) for frame, row in zip(frames, rows, strict=True))
    comfort = extended_comfort(now.states, before.states).to(now.states)
    return torch.cat([scores.with_extended_comfort(comfort).epdms for scores in (now, before)]).nan_to_num(0)
