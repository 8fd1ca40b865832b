"""The start's own plans, braked by a constant: the line that training has to beat.

    python -m benchmarks.navsim.braking docs/results/navsim/braked.json
    python -m benchmarks.navsim.braking docs/results/navsim/braked.json models/trained    # also paired with a policy
    python -m benchmarks.navsim.braking OUT models/trained --start packaged:driver-moving --frames 2

Drivers answer the 1,000 test scenes of configs/navsim.yaml, the frames 0.5 s later and the follow-ups: the start, the
start braked in every scene, an oracle that brakes only scenes in which the start violates NC, DAC or DDC as training
scores them, and trained policies (`export`), which are averaged by scene. The deceleration is the least with which the
braked start has the NC of the trained policies on 400 validation scenes, or without any, the NC that the committed runs
had on their validation prompts, a third of which are follow-ups.

A driver's AUC tells where it brakes. Draw a scene in which a plan of the start collides, and a scene in which none
does: the AUC is the chance that the driver brakes more in the first, in meters less than the start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

from benchmarks.navsim.answers import FORM, MOVING_FORM, Driver
from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene import Scene
from driving_scenes.source import Scenes
from lightning_cgrpo.cli.study.comparison import difference
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.datamodules.base import evenly_spaced
from lightning_cgrpo.tasks.completions import texts
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from lightning_cgrpo.tasks.driving.scene_prompts import FollowUpPrompts, ScenePrompts
from navsim_score.columns import EXTENDED_COMFORT, SHORT
from navsim_score.dialects import EPDMS
from navsim_score.evaluation import drives
from navsim_score.scorer import Scorer
from navsim_score.scoring.comfort import extended_comfort
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from navsim_score.two_stage import Drive, summary

SCENES = 1000
ANSWERS = 4
AT_ONCE = 50
DECELERATIONS = [round(0.1 * step, 1) for step in range(31)]
"""m/s²."""
CONSTRAINED = ("NC", "DAC", "DDC")
MOVING = 8.0
"""Meters in 4 s; a human that drives less stands."""
START, BRAKED, ORACLE, TRAINED = "start", "braked start", "oracle", "trained"
PAIRS = ((BRAKED, START), (ORACLE, START), (ORACLE, BRAKED), (TRAINED, START), (TRAINED, BRAKED))
RUNS = Path("docs/results/navsim/main/runs")
MEASURES = ("NC", "DAC", "EP", "EC", "EPDMS", "EPDMS with EC", "EPDMS, both stages")
Table = dict[str, list[float]]
"""A driver's means over answers, by measure and scene."""


def braked(poses: Tensor, deceleration: float) -> Tensor:
    """Plans on the same paths whose speed at time t is lower by ``deceleration * t``, and at least 0.

    Args:
        poses: ``[R, P, 3]`` x, y, yaw every `POSE_INTERVAL`, NaN where malformed.
        deceleration: m/s².
    """
    knots = torch.cat([poses.new_zeros(len(poses), 1, 3), poses], 1)
    steps = knots[..., :2].diff(dim=1).norm(dim=-1)
    middles = (torch.arange(poses.shape[1], dtype=poses.dtype) + 0.5) * POSE_INTERVAL
    slower = (steps - deceleration * middles * POSE_INTERVAL).clamp(min=0)
    # Each new pose lies between the two old ones with its distance along the path.
    slow = poses.clone()
    for row in range(len(poses)):
        if not poses[row].isnan().any():
            old = np.append(0.0, steps[row].cumsum(0).numpy())
            new = slower[row].cumsum(0).numpy()
            x, y, yaw = knots[row].T.numpy()
            slow[row] = torch.from_numpy(np.stack([np.interp(new, old, one) for one in (x, y, np.unwrap(yaw))], 1))
    return slow


class Drivers:
    """The plans of all drivers.

    Args:
        start: a directory, or ``packaged:driver``.
        trained: directories of trained policies.
        form: of their prompts.

    Attributes:
        deceleration: of the braked start and the oracle, m/s².
    """

    def __init__(self, start: str, trained: Sequence[str], form: PromptFormat) -> None:
        self.form, self.start = form, Driver(start, ANSWERS, form)
        self.trained = {f"{TRAINED} {number}": Driver(model, ANSWERS, form) for number, model in enumerate(trained)}
        self.deceleration = 0.0

    def choose(self) -> None:
        """Set `deceleration`: the least with which the braked start is as safe as the trained policies."""
        complies: dict[float, list[float]] = {each: [] for each in DECELERATIONS}
        trained: list[float] = []
        if self.trained:
            batches = validation_prompts(self.form, count=400, follow_ups=0.0)
        else:  # as the committed runs validated
            batches = validation_prompts(self.form, count=192, follow_ups=0.33)
        for prompts in batches:
            scorer, plans = as_training(prompts), poses_of(self.start, prompts)
            for deceleration, rates in complies.items():
                rates += compliance(scorer, braked(plans, deceleration))["NC"].tolist()
            for driver in self.trained.values():
                trained += compliance(scorer, poses_of(driver, prompts))["NC"].tolist()
        wanted = fmean(trained or committed())
        self.deceleration = next(each for each, rates in complies.items() if fmean(rates) >= wanted)

    def __call__(self, prompts: PromptGroups, replay: Scorer, split: str) -> dict[str, Tensor]:
        """``[B G, P, 3]`` poses by driver."""
        own = poses_of(self.start, prompts, split)
        slow = braked(own, self.deceleration)
        complies = torch.stack([*compliance(replay, own).values()]).unflatten(1, (-1, ANSWERS)).all(2).all(0)
        kept = complies.repeat_interleave(ANSWERS)
        oracle = torch.where(kept[:, None, None], own, slow)
        others = {name: poses_of(driver, prompts, split) for name, driver in self.trained.items()}
        return {START: own, BRAKED: slow, ORACLE: oracle, **others}


def validation_prompts(form: PromptFormat, count: int, follow_ups: float) -> Iterator[PromptGroups]:
    """Validation prompts of configs/navsim.yaml's scenes, a share of which are follow-ups."""
    data = NavsimDataModule(
        scenes=GeneratedScenes(seed=1, follow_ups=2),
        form=form,
        train_prompts=1,
        val_prompts=count,
        test_prompts=1,
        train_follow_ups=follow_ups,
    )
    yield from data.val_dataloader()


def committed() -> list[float]:
    """NC of the committed runs on their validation prompts."""
    runs = [json.loads(path.read_text()) for path in RUNS.glob("cgrpo_pooled_scale_seed*.json")]
    return [run["measured"]["last"]["constraints"]["NC"]["value"] for run in runs]


def prompts_of(scenes: Sequence[Scene], form: PromptFormat) -> Iterator[PromptGroups]:
    yield from PromptLoader(ScenePrompts(scenes, None, form), AT_ONCE)


def poses_of(driver: Driver, prompts: PromptGroups, split: str = "test") -> Tensor:
    return AnswerFormat().trajectories([text for group in texts(driver(prompts, split)) for text in group])


def as_training(prompts: PromptGroups) -> Scorer:
    return Scorer(prompts.columns["scene"], LogReplay(), plans=prompts.columns["plan"], human_filter=False)


def compliance(scorer: Scorer, poses: Tensor) -> dict[str, Tensor]:
    """By constraint, 1 for each plan that complies, 0 for each that violates or is malformed."""
    row = torch.arange(len(scorer.batch.scenes)).repeat_interleave(ANSWERS)
    columns = scorer(poses, row, POSE_INTERVAL).columns
    return {name: (columns[SHORT[name]] == 1).double() for name in CONSTRAINED}


class Measured:
    """Drives and rates of every driver, over the parts of the test."""

    def __init__(self) -> None:
        self.first: dict[str, list[Drive]] = {}
        self.next: dict[str, list[Drive]] = {}
        self.after: dict[str, list[Drive]] = {}
        self.training: dict[str, dict[str, list[float]]] = {}  # compliance of each plan of the first stage
        self.lengths: dict[str, list[Tensor]] = {}  # [G] meters of a scene's plans
        self.human: list[float] = []  # meters

    def add(self, part: str, prompts: PromptGroups, drivers: Drivers) -> None:
        scenes: Sequence[Scene] = prompts.columns["scene"]
        numbers, follows = prompts.index.tolist(), prompts.columns.get("follows")
        replay = as_training(prompts)
        # Extended comfort, all that the next frames are for, is the same in any traffic.
        official = replay if part == "next" else EPDMS.scorer(scenes, Reactive(), prompts.columns["plan"])
        row = torch.arange(len(scenes)).repeat_interleave(ANSWERS)
        for name, poses in drivers(prompts, replay, "test_follow_ups" if follows else "test").items():
            plans = poses.unflatten(0, (len(scenes), ANSWERS))
            scores = official(poses, row, POSE_INTERVAL)
            driven = drives(scenes, scores, plans, POSE_INTERVAL, numbers, follows)
            getattr(self, part).setdefault(name, []).extend(driven)
            if part == "first":
                rates = self.training.setdefault(name, {each: [] for each in CONSTRAINED})
                for each, complies in compliance(replay, poses).items():
                    rates[each] += complies.tolist()
                self.lengths.setdefault(name, []).extend(plans[:, :, -1, :2].norm(dim=-1))
        if part == "first":
            self.human += [float(scene.human[-1, :2].norm()) for scene in scenes if scene.human is not None]

    def table(self, name: str) -> Table:
        """Official means over a scene's answers; EPDMS with EC is of the scene, whose next frame makes EC."""
        columns: Table = {measure: [] for measure in MEASURES}
        both = summary([*self.first[name], *self.after.get(name, [])], EPDMS, Reactive()).by_scene
        for now, later in zip(self.first[name], self.next[name], strict=True):
            for measure in ("NC", "DAC", "EP"):
                columns[measure].append(mean(now.columns[SHORT[measure]], now))
            if now.states is None or later.states is None:
                raise ValueError("Expected simulated states of the first stage.")
            agrees = extended_comfort(later.states, now.states).double()
            counted = dict(now.counted or now.columns)
            columns["EC"].append(float(torch.where(now.valid & later.valid, agrees, 0.0).mean()))
            columns["EPDMS"].append(mean(EPDMS.total(counted), now))
            columns["EPDMS with EC"].append(mean(EPDMS.total(counted | {EXTENDED_COMFORT: agrees.nan_to_num(0)}), now))
            product = both[now.name][1]
            columns["EPDMS, both stages"].append(float("nan") if product is None else product)
        return columns

    def distance(self, name: str) -> float:
        """Mean meters driven relative to the human, where the human moves and all of the start's plans comply."""
        every = torch.tensor([self.training[START][each] for each in CONSTRAINED])
        complies = every.view(len(CONSTRAINED), -1, ANSWERS).all(2).all(0)
        human, driven = torch.tensor(self.human), torch.stack(self.lengths[name]).nanmean(1)
        used = complies & (human > MOVING)
        return float((driven[used] / human[used]).mean())

    def auc(self, name: str) -> float:
        """The chance that a scene with a collision of the start has more of the driver's braking than one without."""
        start = torch.stack(self.lengths[START]).nanmean(1)
        driven = torch.stack(self.lengths[name]).nanmean(1)
        meters_less = (start - driven).numpy()
        known = np.isfinite(meters_less)  # a plan of each driver can be read
        collides = (np.array(self.training[START]["NC"]).reshape(-1, ANSWERS) < 1).any(1)
        there, elsewhere = meters_less[known & collides], meters_less[known & ~collides]
        if not len(there) or not len(elsewhere):
            return float("nan")
        return float(mannwhitneyu(there, elsewhere).statistic) / (len(there) * len(elsewhere))

    def row(self, name: str, table: Table) -> dict[str, Any]:
        result = summary([*self.first[name], *self.after.get(name, [])], EPDMS, Reactive()).as_json()
        result["stage_one"]["EC"] = fmean(table["EC"])
        result["EPDMS with EC"] = fmean(table["EPDMS with EC"])
        result["as training scores"] = {each: fmean(rates) for each, rates in self.training[name].items()}
        result["distance to human's where the start complies"] = self.distance(name)
        result["AUC of braking for the start's collisions"] = self.auc(name)
        return result


def mean(values: Tensor, drive: Drive) -> float:
    """Mean over answers, in which malformed ones count as 0."""
    return float(torch.where(drive.valid, values.double(), 0.0).mean())


def averaged(tables: Sequence[Table]) -> Table:
    """The mean of seeds, by scene."""
    return {each: [fmean(scene) for scene in zip(*(table[each] for table in tables), strict=True)] for each in MEASURES}


def compared(tables: Mapping[str, Table]) -> dict[str, dict[str, str]]:
    """Differences between drivers by measure, paired by scene, with 95 % intervals."""
    lines: dict[str, dict[str, str]] = {}
    for one, other in PAIRS:
        if not {one, other} <= tables.keys():
            continue
        apart = lines.setdefault(f"{one} less {other}", {})
        for each in MEASURES:
            apart[each] = str(difference(dict(enumerate(tables[other][each])), dict(enumerate(tables[one][each]))))
    return lines


def measure(drivers: Drivers, count: int, seed: int) -> Iterator[Measured]:
    """The first stage, then also the second, of the generator's scenes of a seed."""
    source = GeneratedScenes(seed=seed, follow_ups=2)
    places = evenly_spaced(len(source.scenes("test")), SCENES)[:count]
    found = Measured()
    for prompts in prompts_of(Scenes(places, source.scenes("test").__getitem__), drivers.form):
        found.add("first", prompts, drivers)
    for prompts in prompts_of(Scenes(places, source.next_frames("test").__getitem__), drivers.form):
        # Noise of its own, as the second half of a batch of frame pairs has.
        prompts.index += SCENES
        found.add("next", prompts, drivers)
    yield found
    groups = [source.follow_ups("test")[place] for place in places]
    for prompts in PromptLoader(FollowUpPrompts(groups, drivers.form), AT_ONCE):
        found.add("after", prompts, drivers)
    yield found


def report(found: Measured) -> dict[str, Any]:
    """Rows by driver, and differences."""
    tables = {name: found.table(name) for name in found.first}
    rows = {name: found.row(name, table) for name, table in tables.items()}
    seeds = [table for name, table in tables.items() if name.startswith(TRAINED)]
    together = {TRAINED: averaged(seeds)} if seeds else {}
    return {"drivers": rows, "differences": compared(tables | together)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file")
    parser.add_argument("trained", nargs="*", help="directories of trained policies")
    parser.add_argument("--scenes", type=int, default=SCENES, help="the first of the test scenes; default: all")
    parser.add_argument("--seed", type=int, default=1, help="of the generator; default: %(default)s, the training's")
    parser.add_argument("--start", default="packaged:driver", help="a directory; default: %(default)s")
    parser.add_argument("--frames", type=int, choices=[1, 2], default=1, help="that the drivers see")
    options = parser.parse_args()
    torch.set_num_threads(1)
    drivers = Drivers(options.start, options.trained, FORM if options.frames == 1 else MOVING_FORM)
    drivers.choose()
    print(f"Braking by {drivers.deceleration:g} m/s².", flush=True)
    for found in measure(drivers, options.scenes, options.seed):
        result = {"deceleration": drivers.deceleration, **report(found)}
        options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(json.dumps(result["differences"], indent=1), flush=True)


if __name__ == "__main__":
    main()
