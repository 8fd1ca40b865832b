"""The targets of a declared look, and the chance that `certify` certifies a policy, from what a validation tells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri
from torch import Tensor

from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.look import Chance, Look, target_of
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.ratio import LARGEST_STAKE, PRIOR

DRAWS = 2_000
"""Looks that are drawn for a chance."""
MORE = (2, 5, 10)
"""Factors of more prompts whose chance is told."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What a validation tells of a constraint's test in a look, on the scale from 0 to 1 of a rate.

    Args:
        rate: of violation, or mean within its range.
        threshold: of violation.
        single: whether an answer has at most one opportunity, and prompts are samples, so that the exact test decides.
        worth: independent answers that tell as much as a sample of the look.
        size: independent answers that tell as much as the validation.
        share: opportunities of an answer / the most that an answer can have.
        deviation: of a mean's samples; None for a rate.
        each: prompts of a sample, more than 1 where prompts belong together.
    """

    rate: float
    threshold: float
    single: bool
    worth: float
    size: float
    share: float = 1.0
    deviation: float | None = None
    each: float = 1.0

    @classmethod
    def of(cls, name: str, constraint: Constraint, evaluation: Evaluation) -> Seen | None:
        """None for a constraint that was never observed, or a mean without a range."""
        rate, bound = evaluation.rates.get(name), constraint.bound
        if rate is None:
            return None
        # A look takes one answer to each prompt; a validation may take several.
        answers = evaluation.answers / (evaluation.prompts + evaluation.repeats)
        each = max(evaluation.different / evaluation.prompts, 1.0)
        of_sample = evaluation.answers / evaluation.prompts
        share = min(rate.opportunities / (rate.prompts * (rate.most or of_sample)), 1.0)
        if bound.of_mean:
            if bound.range is None:
                return None
            least, width = _scale(bound)
            spread = (rate.standard_error or 0.0) * math.sqrt(rate.prompts) / width
            scaled = (rate.rate - least) / width, (bound.target - least) / width
            return cls(*scaled, False, 1 / answers, rate.prompts, share, spread, each)
        single = each == 1 and (rate.most is None or rate.most <= of_sample * (1 + 1e-9))
        if single:
            return cls(rate.rate, bound.target, True, rate.opportunities / evaluation.answers, rate.effective)
        worth = rate.effective / (evaluation.prompts * answers)
        return cls(rate.rate, bound.target, False, worth, rate.effective, share, each=each)

    def capital(self, true: Array | float, prompts: float) -> tuple[Array, Array]:
        """Mean and deviation of the betting test's logarithm of the capital, at true rates or means.

        The best stake s wins s m - s² q / 2 a sample, with the payoffs' mean m and mean square q (`ratio`).
        """
        samples = prompts / self.each
        most = true * (1 - true)  # of values from 0 to 1 with this mean
        variance = most / self.worth if self.deviation is None else np.minimum(self.deviation**2 / self.worth, most)
        unit = self.share / (1 - self.threshold)
        mean = unit * (self.threshold - true)
        spread = unit * np.sqrt(variance)
        square = spread**2 + mean**2
        stake = np.clip(mean / np.maximum(square, 1e-300), 0, LARGEST_STAKE)
        # The first samples teach the stake.
        taught = max(samples - PRIOR / self.share, 0.0)
        return taught * (stake * mean - stake**2 * square / 2), math.sqrt(taught) * stake * spread

    def target(self, look: Look, constraints: int) -> float | None:
        """The rate, or mean on this scale, that the look certifies with its chance; None if there is none."""
        if self.single:
            return target_of(self.threshold, look, constraints, look.prompts * self.worth)
        z = float(ndtri(look.chance_of_each(constraints)))
        low, high = 0.0, self.threshold
        for _ in range(40):
            middle = (low + high) / 2
            mean, spread = self.capital(middle, look.prompts)
            low, high = (middle, high) if mean - z * spread >= -math.log(look.level(constraints)) else (low, middle)
        return low if low > 0 else None


def look_targets(objective: Objective, evaluation: Evaluation | None = None) -> Tensor | None:
    """Targets of violation ``[K]`` at which the objective's look passes with its chance; None without a look.

    Infinity stands where no target is known: of means without a validation, and of what the look can't certify.
    Without a validation, an answer is taken to have one opportunity.
    """
    if objective.look is None:
        return None
    targets = []
    for name, constraint in objective.constrained.items():
        target = None
        if name in objective.decided:
            target = _target(name, constraint, objective.look, len(objective.decided), evaluation)
        targets.append(math.inf if target is None else target)
    return torch.tensor(targets, dtype=torch.float64)


def shown_targets(objective: Objective, evaluation: Evaluation | None) -> dict[str, float]:
    """The targets of training for a declared look in the user's orientation: aims, else `look_targets`, where known."""
    targets = look_targets(objective, evaluation)
    found: dict[str, float] = {}
    if targets is None:
        return found
    for (name, constraint), target in zip(objective.constrained.items(), targets.tolist(), strict=True):
        if constraint.aim is not None:
            found[name] = constraint.aim
        elif math.isfinite(target):
            found[name] = constraint.bound.shown(target)
    return found


def _target(
    name: str, constraint: Constraint, look: Look, constraints: int, evaluation: Evaluation | None
) -> float | None:
    bound = constraint.bound
    known = None if evaluation is None else Seen.of(name, constraint, evaluation)
    if known is None:
        return None if bound.of_mean else target_of(bound.target, look, constraints)
    target = known.target(look, constraints)
    if target is None or bound.range is None:
        return target
    least, width = _scale(bound)
    return least + width * target


def _scale(bound: Bound) -> tuple[float, float]:
    """Least level of violation of a mean, and the width of its range."""
    assert bound.range is not None
    least, most = bound.range
    return (-most if bound.lower else least), most - least


def chance_of(look: Look, constraints: Mapping[str, Constraint], evaluation: Evaluation) -> Chance:
    """The chance of a first look, over the posterior of the rates that a validation measured.

    A rate's posterior is Jeffreys' with the effective number of answers, a mean's is normal. Constraints are taken to
    be independent. The draws are the same for equal validations.
    """
    known = {name: Seen.of(name, constraint, evaluation) for name, constraint in constraints.items()}
    each: dict[str, float] = {}
    whole: dict[int, float] = {}
    for factor in (1, *MORE):
        prompts = factor * look.prompts
        p_values = drawn_p_values([*known.values()], prompts)
        whole[prompts] = share_certified(p_values, look)
        if factor == 1:
            each = dict(zip(known, (p_values <= look.level(len(known))).mean(1).tolist(), strict=True))
    return Chance(whole.pop(look.prompts), each, whole)


def drawn_p_values(known: Sequence[Seen | None], prompts: int) -> Array:
    """p-values ``[K, DRAWS]`` of looks at this many prompts; the draws are the same for equal arguments."""
    draw = np.random.default_rng(0)
    return np.stack([_p_values(of, prompts, draw) for of in known])


def share_certified(p_values: Array, look: Look) -> float:
    """The share of draws ``[K, DRAWS]`` in which all of Holm's steps reject."""
    levels = look.error / np.arange(len(p_values), 0, -1)[:, None]
    return float((np.sort(p_values, axis=0) <= levels).all(0).mean())


def _p_values(of: Seen | None, prompts: int, draw: np.random.Generator) -> Array:
    """p-values ``[DRAWS]`` of looks at policies drawn from the posterior; 1 of an unobserved constraint."""
    if of is None:
        return np.ones(DRAWS)
    if of.deviation is not None:
        true = draw.normal(of.rate, of.deviation / math.sqrt(of.size), DRAWS)
    else:
        true = draw.beta(of.rate * of.size + 0.5, (1 - of.rate) * of.size + 0.5, DRAWS)
    if of.single:
        number = max(round(of.worth * prompts), 1)
        return bdtr(draw.binomial(number, true).astype(float), number, of.threshold)
    mean, spread = of.capital(true, prompts)
    return np.exp(-np.maximum(mean + spread * draw.normal(size=DRAWS), 0))
