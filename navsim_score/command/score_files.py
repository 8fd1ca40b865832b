"""Score pairs of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from driving_scenes.errors import InputError
from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene
from driving_scenes.vehicle import corners
from navsim_score.columns import EXTENDED_COMFORT, SHORT
from navsim_score.command.pairs import Pair, list_names
from navsim_score.command.scored_scene import Picture, ScoredScene, partner_rows, scene_finder
from navsim_score.command.trajectory_file import Candidate, read_candidates
from navsim_score.dialects import OFF, PDMS, Dialect, Epdms
from navsim_score.explanation import explain
from navsim_score.geometry.boxes import box_corners, boxes_touch
from navsim_score.provenance import Provenance, digest, scorer_version
from navsim_score.scorer import Scorer, Scores
from navsim_score.scoring.comfort import paired_comfort
from navsim_score.scoring.motion import take
from navsim_score.traffic.traffic import TrafficPolicy

SCENES_AT_ONCE = 32
"""More scenes take more memory at hardly more speed."""

Loaded = tuple[Pair, Scene, list[Candidate]]


def score_files(
    pairs: Sequence[Pair],
    traffic: TrafficPolicy,
    dialects: Sequence[Dialect],
    pictures: bool,
    done: Callable[[int], None],
    explained: str | None = None,
) -> tuple[list[ScoredScene], list[str]]:
    """Score pairs of files: scored scenes in the order of the pairs, and errors of the other pairs.

    Args:
        dialects: of the totals. The first is the form of `epdms`, and decides whether columns are filtered.
        pictures: keep `ScoredScene.picture`.
        done: called with the number of pairs just scored.
        explained: stem or name of the scene to fill `ScoredScene.words` of.
    """
    results = []
    errors = []
    for first in range(0, len(pairs), SCENES_AT_ONCE):
        some_pairs = pairs[first : first + SCENES_AT_ONCE]
        loaded: list[Loaded] = []
        for pair in some_pairs:
            try:
                trajectories = pair.trajectories
                candidates = read_candidates(trajectories) if isinstance(trajectories, Path) else list(trajectories)
                loaded.append((pair, read_scene(pair.scene), candidates))
            except InputError as error:
                errors.append(str(error))
        for together in _by_sampling(loaded):
            try:
                results += _score_together(together, traffic, dialects, pictures, explained)
            except Exception:
                # Scored one by one, because one scene fails, maybe unforeseen, as with coordinates of 1e300.
                for single in together:
                    try:
                        results += _score_together([single], traffic, dialects, pictures, explained)
                    except Exception as error:
                        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                        errors.append(f"{single[0].stem}: {kind}{error}")
        done(len(some_pairs))
    places = {pair.stem: place for place, pair in enumerate(pairs)}
    return _with_extended_comfort(sorted(results, key=lambda result: places[result.stem])), errors


def _sampling_of(candidates: Sequence[Candidate]) -> tuple[int, float]:
    """Number of poses and interval of a scene's candidates; those of the first that isn't malformed."""
    for candidate in candidates:
        if candidate.poses is not None:
            return len(candidate.poses), candidate.interval
    return 8, 0.5


def _by_sampling(loaded: Sequence[Loaded]) -> list[list[Loaded]]:
    """Scenes with plans of the same times; other plans of a scene become malformed."""
    parts: dict[tuple[int, float], list[Loaded]] = {}
    for pair, scene, candidates in loaded:
        count, interval = _sampling_of(candidates)
        same = []
        for candidate in candidates:
            poses = candidate.poses
            if poses is not None and (len(poses), candidate.interval) != (count, interval):
                fault = f"Expected {count} poses, as of the scene's others, but got {len(poses)}."
                candidate = Candidate(candidate.tag, None, fault)
            same.append(candidate)
        parts.setdefault((count, interval), []).append((pair, scene, same))
    return list(parts.values())


def _score_together(
    loaded: Sequence[Loaded],
    traffic: TrafficPolicy,
    dialects: Sequence[Dialect],
    pictures: bool,
    explained: str | None,
) -> list[ScoredScene]:
    filtered = dialects[0] != Epdms(OFF)
    scenes = [scene for _, scene, _ in loaded]
    scorer = Scorer(scenes, traffic, human_filter=filtered, pdms=PDMS in dialects)
    totals = {dialect.full_name(traffic): dialect for dialect in dialects}
    # The plans of all scenes, one after the other.
    poses_of_plan, interval = _sampling_of(loaded[0][2])
    malformed = torch.full((poses_of_plan, 3), torch.nan, dtype=torch.float64)
    plans = []
    scene_of_row = []
    for number, (_, _, candidates) in enumerate(loaded):
        for candidate in candidates:
            plans.append(malformed if candidate.poses is None else candidate.poses)
            scene_of_row.append(number)
    poses = torch.stack(plans)
    rows_scene = torch.tensor(scene_of_row)
    scores = scorer(poses, rows_scene, interval)
    hits = _boxes_hit(scorer, scores, rows_scene) if pictures else []
    # The scores of each scene.
    results = []
    begin = 0
    for number, ((pair, scene, candidates), plan) in enumerate(zip(loaded, scorer.plans, strict=True)):
        rows = slice(begin, begin + len(candidates))
        begin = rows.stop
        words = []
        if explained in (pair.stem, scene.name):
            words = [explain(scorer, scores, row, number, poses[row]) for row in range(rows.start, rows.stop)]
        provenance = Provenance(pair.scene.name, None, scorer_version(), digest(pair.scene.read_bytes()))
        picture = Picture(scene, plan.centerline, hits[rows]) if pictures else None
        results.append(
            ScoredScene(
                stem=pair.stem,
                name=scene.name,
                start=scene.ego.poses[-1],
                previous=scene.previous,
                follow_ups=scene.follow_ups,
                candidates=candidates,
                poses=poses[rows],
                scores=take(scores, rows),
                totals=totals,
                provenance=str(provenance),
                picture=picture,
                words=words,
            )
        )
    return results


def _boxes_hit(scorer: Scorer, scores: Scores, scene: Tensor) -> list[Tensor]:
    """Per row, corners ``[n, 4, 2]`` of the agents that the ego touches at its first at-fault collision."""
    hits = [torch.zeros(0, 4, 2, dtype=torch.float64)] * len(scene)
    steps = scores.steps[SHORT["NC"]]
    rows = (steps >= 0).nonzero()[:, 0]
    if len(rows):
        traffic = scorer.traffic(scorer.batch, scores.states[rows], scene[rows])
        for number, row in enumerate(rows.tolist()):
            step = int(steps[row])
            rollout = traffic.of_row[number]
            boxes = box_corners(traffic.poses[rollout, :, step], traffic.sizes[rollout])
            touched = boxes_touch(boxes, corners(scores.states[row, step])) & traffic.present[rollout, :, step]
            hits[row] = boxes[touched]
    return hits


def _with_extended_comfort(results: Sequence[ScoredScene]) -> list[ScoredScene]:
    find = scene_finder(results)
    compared = []
    for result in results:
        before = find(result.previous)
        if before is not None:
            partner = partner_rows(result, before)
            states = before.scores.states[partner.clamp(min=0)]
            comfort = torch.where(partner >= 0, paired_comfort(result.scores.states, states), torch.nan)
            result = replace(result, scores=result.scores.with_extended_comfort(comfort))
        compared.append(result)
    return compared


def without_previous(results: Sequence[ScoredScene]) -> list[str]:
    """Note scenes whose previous scene is not scored."""
    stems = []
    for result in results:
        if result.previous is not None and EXTENDED_COMFORT not in result.scores.columns:
            stems.append(result.stem)
    if not stems:
        return []
    return [f"No extended comfort for {list_names(stems)}: the previous scene is not among those scored."]
