"""Scores pairs of files, many scenes at a time. What can't be scored is said, and doesn't stop the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.navsim.aggregation import EXTENDED_COMFORT
from lightning_cgrpo.navsim.command.pairs import Pair, names
from lightning_cgrpo.navsim.command.results import Names, Picture, Result, partners, take
from lightning_cgrpo.navsim.command.trajectory_file import POSES, Candidate, read_candidates
from lightning_cgrpo.navsim.geometry.boxes import box_corners, boxes_touch
from lightning_cgrpo.navsim.scorer import Scorer, Scores
from lightning_cgrpo.navsim.scoring.comfort import extended_comfort
from lightning_cgrpo.navsim.traffic.traffic import TrafficPolicy
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.scene_file import read_scene
from lightning_cgrpo.scenes.vehicle import corners

SCENES_AT_ONCE = 32
"""More are hardly faster, and take more memory."""

Loaded = tuple[str, Scene, list[Candidate]]


def score_files(
    pairs: Sequence[Pair],
    traffic: TrafficPolicy,
    *,
    human_filter: bool = True,
    pictures: bool = False,
    done: Callable[[int], None] = lambda count: None,
) -> tuple[list[Result], list[str]]:
    """Score files.

    Args:
        pairs: of files.
        traffic: how the others behave.
        human_filter: see `Scorer`.
        pictures: keep what they take, `Result.picture`.
        done: is called with the number of pairs that are done, after some of them.

    Returns:
        What was scored, in the order of the pairs; and for each other pair why it wasn't.
    """
    results, errors = [], []
    for first in range(0, len(pairs), SCENES_AT_ONCE):
        some = pairs[first : first + SCENES_AT_ONCE]
        loaded: list[Loaded] = []
        for pair in some:
            try:
                loaded.append((pair.stem, read_scene(pair.scene), read_candidates(pair.trajectories)))
            except UserError as error:
                errors.append(str(error))
        try:
            results += _score(loaded, traffic, human_filter, pictures)
        except Exception:
            # One of them can't be scored, foreseen or not, as one with coordinates of 1e300: each by itself.
            for one in loaded:
                try:
                    results += _score([one], traffic, human_filter, pictures)
                except Exception as error:
                    told = isinstance(error, UserError)
                    errors.append(f"{one[0]}: {error}" if told else f"{one[0]}: {type(error).__name__}: {error}")
        done(len(some))
    return _compared(results), errors


def _score(loaded: Sequence[Loaded], traffic: TrafficPolicy, human_filter: bool, pictures: bool) -> list[Result]:
    if not loaded:
        return []
    scorer = Scorer([scene for _, scene, _ in loaded], traffic, human_filter=human_filter)
    malformed = torch.full((POSES, 3), torch.nan, dtype=torch.float64)
    poses = torch.stack(
        [malformed if one.poses is None else one.poses for _, _, candidates in loaded for one in candidates]
    )
    counts = [len(candidates) for _, _, candidates in loaded]
    scene = torch.arange(len(loaded)).repeat_interleave(torch.tensor(counts))
    scores = scorer(poses, scene)
    hits = _hits(scorer, scores, scene) if pictures else []
    results, begin = [], 0
    for (stem, of, candidates), plan, count in zip(loaded, scorer.plans, counts, strict=True):
        rows = slice(begin, begin + count)
        begin += count
        results.append(
            Result(
                stem,
                of.name,
                of.ego.poses[-1],
                of.previous,
                of.follow_ups,
                candidates,
                poses[rows],
                take(scores, rows),
                Picture(of, plan.centerline, hits[rows]) if pictures else None,
            )
        )
    return results


def _hits(scorer: Scorer, scores: Scores, scene: Tensor) -> list[Tensor]:
    """``[n, 4, 2]`` for each row: the boxes that its ego touches at its first collision."""
    found = [torch.zeros(0, 4, 2, dtype=torch.float64)] * len(scene)
    steps = scores.steps["no_at_fault_collisions"]
    rows = (steps >= 0).nonzero()[:, 0]
    if len(rows):
        traffic = scorer.traffic(scorer.batch, scores.states[rows], scene[rows])
        for number, row in enumerate(rows.tolist()):
            step, rollout = int(steps[row]), traffic.of_row[number]
            boxes = box_corners(traffic.poses[rollout, :, step], traffic.sizes[rollout])
            touched = boxes_touch(boxes, corners(scores.states[row, step])) & traffic.present[rollout, :, step]
            found[row] = boxes[touched]
    return found


def _compared(results: Sequence[Result]) -> list[Result]:
    """With extended comfort, where a scene names the scene before, and that is there."""
    found = Names(results)
    compared = []
    for result in results:
        before = found.get(result.previous)
        if before is not None:
            partner = partners(result, before)
            states = before.scores.states[partner.clamp(min=0)]
            comfort = extended_comfort(result.scores.states, states).to(states)
            known = (partner >= 0) & before.scores.valid[partner.clamp(min=0)]
            comfort = torch.where(known, comfort, torch.nan)
            result = replace(result, scores=result.scores.with_extended_comfort(comfort))
        compared.append(result)
    return compared


def without_previous(results: Sequence[Result]) -> list[str]:
    """A note that names the scenes which name a scene before that isn't there: they have no extended comfort."""
    stems = [
        result.stem
        for result in results
        if result.previous is not None and EXTENDED_COMFORT not in result.scores.columns
    ]
    return [f"No extended comfort for {names(stems)}: the previous scene is not among those scored."] if stems else []
