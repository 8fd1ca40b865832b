"""What a policy's answers say under a specification: its standing before a look, and the certificate of the look."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.specifications.runs import LOOKED, SELECTING, SIGNALS, specifications
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

LONGEST = 80
"""Tokens of an answer (`configs/gsm8k.yaml`)."""
SELECTS = np.random.default_rng(0).permutation(SELECTING + LOOKED) < SELECTING
"""The test problems by which policies are chosen: drawn at random, because the first 1,000 are harder than most."""
Answers = Mapping[str, NDArray[Any]]
"""See `runs.train`."""


@cache
def objective(name: str) -> Objective:
    """The objective of a specification, with its look."""
    return Objective.declared(specifications()[name] | {"look": {"prompts": LOOKED}})


def standing(name: str, answers: Answers) -> Standing:
    """What the problems tell by which a policy is chosen before the look."""
    of = objective(name)
    signals = _signals(answers, SELECTS)
    rows = _rows(of, signals)
    sums = {key: float(values.sum()) for key, values in (rows | moments(of.constraints, rows)).items()}
    problems = len(rows["answers"])
    rewards = _rewards(of, signals)
    return Standing.of(
        of,
        Evaluation(
            {"reward/mean": float(rewards.mean())},
            {"reward/mean": float(rewards.std() / problems**0.5)},
            prompts=problems,
            answers=problems,
            rates=clustered_rates(of.constraints, sums, of.means),
            different=problems,
        ),
    )  # type: ignore[return-value] # there is a reward


def certificate(name: str, answers: Answers) -> dict[str, Any]:
    """The verdict of `certify` in a first look at the other test problems."""
    of = objective(name)
    signals = _signals(answers, ~SELECTS)
    whole = dict.fromkeys(of.decided, True)  # all signals are of whole answers
    sample = Sample(_rows(of, signals), "test problems", LONGEST, whole)
    return certificate_of(sample, of, Asked(LOOKED, of.look.confidence, 1, Used()))  # type: ignore[union-attr]


def rewards(name: str, answers: Answers) -> Tensor:
    """Rewards of the answers in the look ``[N]``."""
    return _rewards(objective(name), _signals(answers, ~SELECTS))


def _signals(answers: Answers, part: NDArray[np.bool_]) -> dict[str, Signal]:
    """The signals of a part's different problems ``[N, 1]``."""
    different = part & answers["new"]
    values = {name: torch.from_numpy(answers[name][different].astype(np.float64))[:, None] for name in SIGNALS}
    return {name: Signal(value) for name, value in values.items()} | {"length": Signal(-values["tokens"] / LONGEST)}


def _rows(of: Objective, signals: Mapping[str, Signal]) -> dict[str, Tensor]:
    """Sums of each problem's answer, as `prompt_sums` has them."""
    ones = torch.ones(len(signals["tokens"].value), dtype=torch.float64)
    rows = {"answers": ones}
    for name, (violations, opportunities) in of.counts(signals).items():
        rows |= {violations_of(name): violations, opportunities_of(name): opportunities, most_of(name): ones}
    return rows | {faults_of(name): torch.zeros_like(ones) for name in signals}


def _rewards(of: Objective, signals: Mapping[str, Signal]) -> Tensor:
    assert isinstance(of.reward, str)
    return signals[of.reward].value[:, 0]
