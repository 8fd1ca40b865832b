"""A policy's standing under a specification before a look, and the certificate of the look, from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.specifications.job import Job
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.moments import (
    clustered_rates,
    faults_of,
    moments,
    most_of,
    opportunities_of,
    violations_of,
)
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import Standing
from lightning_cgrpo.run.certificate import Sample, certificate_of
from lightning_cgrpo.run.looks import Asked, Used

Answers = Mapping[str, NDArray[Any]]
"""See `runs.train`."""


def objective(job: Job, name: str) -> Objective:
    """The objective of a specification, with its look."""
    return Objective.declared(job.specifications[name] | {"look": {"prompts": job.looked}})


def standing(job: Job, name: str, answers: Answers) -> Standing:
    """The standing on the prompts by which a policy is chosen before the look."""
    of = objective(job, name)
    signals = _signals(job, answers, job.selects)
    rows = _rows(of, signals)
    sums = {key: float(values.sum()) for key, values in (rows | moments(of.constraints, rows)).items()}
    prompts = len(rows["answers"])
    rewards = _rewards(of, signals)
    return Standing.of(
        of,
        Evaluation(
            {"reward/mean": float(rewards.mean())},
            {"reward/mean": float(rewards.std() / prompts**0.5)},
            prompts=prompts,
            answers=prompts,
            rates=clustered_rates(of.constraints, sums, of.means),
            different=prompts,
        ),
    )  # type: ignore[return-value] # there is a reward


def certificate(job: Job, name: str, answers: Answers) -> dict[str, Any]:
    """The verdict of `certify` in a first look at the other test prompts."""
    of = objective(job, name)
    signals = _signals(job, answers, ~job.selects)
    whole = dict.fromkeys(of.decided, True)  # all signals are of whole answers
    sample = Sample(_rows(of, signals), "test prompts", job.longest, whole)
    return certificate_of(sample, of, Asked(job.looked, of.look.confidence, 1, Used()))  # type: ignore[union-attr]


def rewards(job: Job, name: str, answers: Answers) -> Tensor:
    """Rewards of the answers in the look ``[N]``."""
    return _rewards(objective(job, name), _signals(job, answers, ~job.selects))


def _signals(job: Job, answers: Answers, part: NDArray[np.bool_]) -> dict[str, Signal]:
    """The signals of a part's different prompts ``[N, 1]``."""
    different = part & answers["new"]
    values = {name: torch.from_numpy(answers[name][different].astype(np.float64))[:, None] for name in job.signals}
    return {name: Signal(value) for name, value in values.items()} | {"length": Signal(-values["tokens"] / job.longest)}


def _rows(of: Objective, signals: Mapping[str, Signal]) -> dict[str, Tensor]:
    """Sums of each prompt's answer, as `prompt_sums` has them."""
    ones = torch.ones(len(signals["tokens"].value), dtype=torch.float64)
    rows = {"answers": ones}
    for name, (violations, opportunities) in of.counts(signals).items():
        rows |= {violations_of(name): violations, opportunities_of(name): opportunities, most_of(name): ones}
    return rows | {faults_of(name): torch.zeros_like(ones) for name in signals}


def _rewards(of: Objective, signals: Mapping[str, Signal]) -> Tensor:
    assert isinstance(of.reward, str)
    return signals[of.reward].value[:, 0]
