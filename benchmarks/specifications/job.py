"""A problem with specifications, and the methods that train for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import qmc

from benchmarks.first_looks import ROOT

SHARED = ("gdpo", "pool")
"""Methods whose runs train for no specification, so that all specifications choose from them."""


@dataclass(frozen=True)
class Run:
    """A training run.

    Args:
        method: of `Job.methods`.
        name: the specification, or the number of fixed weights, or "" for GDPO, which trains for no specification.
    """

    method: str
    name: str
    seed: int

    def __str__(self) -> str:
        parts = (self.method, self.name, f"seed={self.seed}")
        return ",".join(part for part in parts if part)

    @property
    def checkpoint(self) -> str:
        """The run's last where it trains for no specification, else its best."""
        return "last" if self.method in SHARED else "best"


Settings = tuple[list[Path], dict[str, Any]]
"""Configurations over the job's, and settings over those."""


@dataclass(frozen=True)
class Job:
    """A problem with specifications.

    Args:
        name: of the file of specifications.
        config: that the runs begin with.
        beside: the functions that the configuration names lie beside it, and are copied into each run's folder.
        prepare: writes what a run needs into its folder.
        methods: what each method is called.
        retired: methods whose committed runs cannot be trained today.
        signals: the type in which each signal of an answer is kept.
        longest: tokens of an answer.
        selecting, looked: test prompts by which a policy is chosen, and those of the look at it.
        tested: the first test prompts, which a plain ``test`` answers; None if it answers all.
        pool: number of fixed weights.
        weights: their ranges, beside a weight of 1 on the reward.
        settings: of a run.
        predict: arguments of ``predict`` for all test prompts.
        reward_words: behind a mean reward; a reward of ``length`` is told in tokens.
    """

    name: str
    config: Path
    results: Path
    methods: Mapping[str, str]
    signals: Mapping[str, Any]
    longest: int
    selecting: int
    looked: int
    pool: int
    weights: Mapping[str, tuple[float, float]]
    settings: Callable[[Job, Run], Settings]
    reward_words: str
    predict: tuple[str, ...] = ()
    beside: bool = False
    prepare: Callable[[Path], None] | None = None
    retired: tuple[str, ...] = ()
    tested: int | None = None

    @property
    def answers(self) -> Path:
        """Folder of the answers by run."""
        return self.results / "answers"

    @cached_property
    def specifications(self) -> dict[str, dict[str, Any]]:
        """Rewards and constraints by name."""
        text = (Path(__file__).parent / f"{self.name}.yaml").read_text(encoding="utf-8")
        specified: dict[str, dict[str, Any]] = yaml.safe_load(text)
        return specified

    def runs(self, method: str, seeds: int) -> Iterator[Run]:
        """All runs of a method; the pool has one seed."""
        names = {"gdpo": [""], "pool": [str(number) for number in range(self.pool)]}
        for seed in range(min(seeds, 1) if method == "pool" else seeds):
            for name in names.get(method, self.specifications):
                yield Run(method, name, seed)

    @cached_property
    def fixed_weights(self) -> list[dict[str, float]]:
        """The first points of Sobol's sequence between `weights`, on a logarithmic scale; they sum to 1."""
        low, high = np.log(list(self.weights.values())).T
        points = np.exp(qmc.scale(qmc.Sobol(len(self.weights), seed=0).random(self.pool), low, high))
        pool = []
        for point in points:
            total = 1 + float(point.sum())
            weights = {"reward": 1.0} | dict(zip(self.weights, point.tolist(), strict=True))
            pool.append({name: round(weight / total, 4) for name, weight in weights.items()})
        return pool

    @cached_property
    def selects(self) -> np.ndarray:
        """The test prompts by which policies are chosen ``[N]``: drawn at random, because the first can be unlike."""
        return np.random.default_rng(0).permutation(self.selecting + self.looked) < self.selecting


def ablation(name: str) -> Path:
    return ROOT / f"configs/ablations/{name}.yaml"
