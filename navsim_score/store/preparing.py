"""Scenes of files and metric caches, prepared for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from driving_scenes import SCENE_SUFFIX
from driving_scenes.devkit.index import read_cache
from driving_scenes.errors import InputError, first_line
from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.drop_in import cached_scene
from navsim_score.scorer import Scorer
from navsim_score.store.record import record_of, to_bytes
from navsim_score.store.store import Entry

MICROSECONDS = 1e6
Prepared = tuple[Entry, bytes]
Reader = Callable[[Path], Prepared]


def prepared(
    scene: Scene, plan: ExpertPlan | None = None, name: str | None = None, seconds: float | None = None
) -> Prepared:
    """A scene's entry and record.

    Args:
        plan: the expert's; by default PDM-Closed plans.
        name: in the store; by default the scene's.
        seconds: of t = 0 in the log; None leaves the scene out of the pairs of its log.
    """
    plans = None if plan is None else [plan]
    scorer = Scorer([scene], plans=plans)
    content = to_bytes(record_of(scorer))
    return Entry(name or scene.name, scene.previous, scene.log, seconds, len(content)), content


def of_scene_file(path: Path) -> Prepared:
    """Prepare a scene file."""
    entry, content = prepared(read_scene(path))
    return replace(entry, file=path.name.removesuffix(SCENE_SUFFIX).removesuffix(".json")), content


def of_metric_cache(path: Path) -> Prepared:
    """Prepare a metric cache of the devkit, a pickle; its folder's name is the token."""
    cache: Any = read_cache(path)
    scene, plan = cached_scene(cache)
    # Synthetic scenes have the log and the times of an original one, whose pair they aren't.
    seconds = None if scene.synthetic else cache.ego_state.time_us / MICROSECONDS
    entry, content = prepared(scene, plan, path.parent.name, seconds)
    log = getattr(cache, "log_name", None) or path.parents[2].name
    return replace(entry, log=str(log)), content


def prepare(read: Reader, paths: Sequence[Path], workers: int, wrong: list[str]) -> Iterator[Prepared]:
    """Prepare files in order; faults are put into `wrong`, because one damaged file must not end hours of work.

    Args:
        workers: processes; 1 prepares in this process.
    """
    if workers == 1:
        results = map(_read_or_fault, repeat(read), paths)
        yield from _without_faults(results, wrong)
        return
    # A thread for each, because processes share the work.
    with ProcessPoolExecutor(min(workers, len(paths)), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from _without_faults(pool.map(_read_or_fault, repeat(read), paths, chunksize=8), wrong)


def _read_or_fault(read: Reader, path: Path) -> Prepared | str:
    try:
        return read(path)
    except Exception as error:  # damaged pickles raise errors of all kinds
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        fault = f"{kind}{first_line(error)}."
        return fault if fault.startswith(f"{path}:") else f"{path}: {fault}"


def _without_faults(results: Iterator[Prepared | str], wrong: list[str]) -> Iterator[Prepared]:
    for result in results:
        if isinstance(result, str):
            wrong.append(result)
        else:
            yield result
