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
        rate = evaluation.rates.get(name)
        bound = constraint.bound
        if rate is None:
            return None
        # A look takes one answer to each prompt; a validation may take several, and its samples several prompts.
        answers_per_prompt = evaluation.answers / (evaluation.prompts + evaluation.repeats)
        answers_per_sample = evaluation.answers / evaluation.prompts
        prompts_per_sample = max(evaluation.different / evaluation.prompts, 1.0)
        most = rate.most or answers_per_sample
        share = min(rate.opportunities / (rate.prompts * most), 1.0)
        if bound.of_mean:
            if bound.range is None:
                return None
            # The betting test of a mean, scaled to [0, 1].
            least, width = _range_of_violation(bound)
            return cls(
                rate=(rate.rate - least) / width,
                threshold=(bound.target - least) / width,
                single=False,
                worth=1 / answers_per_prompt,
                size=rate.prompts,
                share=share,
                deviation=(rate.standard_error or 0.0) * math.sqrt(rate.prompts) / width,
                each=prompts_per_sample,
            )
        one_opportunity = rate.most is None or rate.most <= answers_per_sample * (1 + 1e-9)
        if prompts_per_sample == 1 and one_opportunity:
            # The exact test.
            worth = rate.opportunities / evaluation.answers
            return cls(rate.rate, bound.target, single=True, worth=worth, size=rate.effective)
        # The betting test of a rate with several opportunities per sample.
        worth = rate.effective / (evaluation.prompts * answers_per_prompt)
        return cls(
            rate.rate,
            bound.target,
            single=False,
            worth=worth,
            size=rate.effective,
            share=share,
            each=prompts_per_sample,
        )

    def capital(self, true: Array | float, prompts: float) -> tuple[Array, Array]:
        """Mean and deviation of the betting test's logarithm of the capital, at true rates or means.

        The best stake s wins s m - s² q / 2 a sample, with the payoffs' mean m and mean square q (`ratio`).
        """
        samples = prompts / self.each
        # The variance of a sample; values from 0 to 1 with this mean have at most the variance of a rate.
        largest_variance = true * (1 - true)
        if self.deviation is None:
            variance = largest_variance / self.worth
        else:
            variance = np.minimum(self.deviation**2 / self.worth, largest_variance)
        # Mean, deviation and mean square of a sample's payoff.
        unit = self.share / (1 - self.threshold)
        mean = unit * (self.threshold - true)
        spread = unit * np.sqrt(variance)
        square = spread**2 + mean**2
        stake = np.clip(mean / np.maximum(square, 1e-300), 0, LARGEST_STAKE)
        # The first samples teach the stake, and win nothing.
        winning = max(samples - PRIOR / self.share, 0.0)
        gain = stake * mean - stake**2 * square / 2
        return winning * gain, math.sqrt(winning) * stake * spread

    def target(self, look: Look, constraints: int) -> float | None:
        """The rate, or mean on this scale, that the look certifies with its chance; None if there is none."""
        if self.single:
            return target_of(self.threshold, look, constraints, look.prompts * self.worth)
        # The capital, this many deviations below its mean, must reach the reciprocal of the level.
        z = float(ndtri(look.chance_of_each(constraints)))
        needed = -math.log(look.level(constraints))
        # Bisection: the look certifies `low`, unless it is 0, and not `high`.
        low, high = 0.0, self.threshold
        for _ in range(40):
            middle = (low + high) / 2
            mean, spread = self.capital(middle, look.prompts)
            if mean - z * spread >= needed:
                low = middle
            else:
                high = middle
        return low if low > 0 else None


def look_targets(objective: Objective, evaluation: Evaluation | None = None) -> Tensor | None:
    """Targets of violation ``[K]`` at which the objective's look passes with its chance; None without a look.

    Infinity stands where no target is known: of means without a validation, and of what the look can't certify.
    Without a validation, an answer is taken to have one opportunity.
    """
    if objective.look is None:
        return None
    decided = objective.decided
    targets = []
    for name, constraint in objective.constrained.items():
        target = None
        if name in decided:
            target = _look_target(name, constraint, objective.look, len(decided), evaluation)
        targets.append(math.inf if target is None else target)
    return torch.tensor(targets, dtype=torch.float64)


def shown_targets(objective: Objective, evaluation: Evaluation | None) -> dict[str, float]:
    """The targets of training for a declared look in the user's orientation: aims, else `look_targets`, where known."""
    targets = look_targets(objective, evaluation)
    if targets is None:
        return {}
    shown: dict[str, float] = {}
    for (name, constraint), target in zip(objective.constrained.items(), targets.tolist(), strict=True):
        if constraint.aim is not None:
            shown[name] = constraint.aim
        elif math.isfinite(target):
            shown[name] = constraint.bound.shown(target)
    return shown


def _look_target(
    name: str, constraint: Constraint, look: Look, constraints: int, evaluation: Evaluation | None
) -> float | None:
    """The target of violation of one of `constraints` that share the look; None where none is known."""
    bound = constraint.bound
    seen = None if evaluation is None else Seen.of(name, constraint, evaluation)
    if seen is None:
        return None if bound.of_mean else target_of(bound.target, look, constraints)
    target = seen.target(look, constraints)
    if target is None or bound.range is None:
        return target
    # From the scale of a rate to the mean's own.
    least, width = _range_of_violation(bound)
    return least + width * target


def _range_of_violation(bound: Bound) -> tuple[float, float]:
    """Least level of violation of a mean, and the width of its range."""
    assert bound.range is not None
    least, most = bound.range
    least_violation = -most if bound.lower else least
    return least_violation, most - least


def chance_of(look: Look, constraints: Mapping[str, Constraint], evaluation: Evaluation) -> Chance:
    """The chance of a first look, over the posterior of the rates that a validation measured.

    A rate's posterior is Jeffreys' with the effective number of answers, a mean's is normal. Constraints are taken to
    be independent. The draws are the same for equal validations.
    """
    seen = [Seen.of(name, constraint, evaluation) for name, constraint in constraints.items()]
    # The declared look: all constraints together, and each at its level among all.
    p_values = drawn_p_values(seen, look.prompts)  # [K, DRAWS]
    whole = share_certified(p_values, look)
    shares = (p_values <= look.level(len(seen))).mean(1).tolist()
    each = dict(zip(constraints, shares, strict=True))
    # Looks at more prompts.
    more: dict[int, float] = {}
    for factor in MORE:
        prompts = factor * look.prompts
        more[prompts] = share_certified(drawn_p_values(seen, prompts), look)
    return Chance(whole, each, more)


def drawn_p_values(seen: Sequence[Seen | None], prompts: int) -> Array:
    """p-values ``[K, DRAWS]`` of looks at this many prompts; the draws are the same for equal arguments."""
    draw = np.random.default_rng(0)
    return np.stack([_p_values_of_constraint(constraint, prompts, draw) for constraint in seen])


def share_certified(p_values: Array, look: Look) -> float:
    """The share of draws ``[K, DRAWS]`` in which all of Holm's steps reject."""
    # The smallest p-value is compared with error / K, the next with error / (K - 1), and so on.
    levels = look.error / np.arange(len(p_values), 0, -1)[:, None]  # [K, 1]
    rejected = np.sort(p_values, axis=0) <= levels
    return float(rejected.all(0).mean())


def _p_values_of_constraint(seen: Seen | None, prompts: int, draw: np.random.Generator) -> Array:
    """p-values ``[DRAWS]`` of looks at policies drawn from the posterior; 1 of an unobserved constraint."""
    if seen is None:
        return np.ones(DRAWS)
    # Draw true rates, or means, from the posterior.
    if seen.deviation is not None:
        true = draw.normal(seen.rate, seen.deviation / math.sqrt(seen.size), DRAWS)
    else:
        true = draw.beta(seen.rate * seen.size + 0.5, (1 - seen.rate) * seen.size + 0.5, DRAWS)
    # Draw the violations of the exact test, or the logarithm of the betting test's capital.
    if seen.single:
        answers = max(round(seen.worth * prompts), 1)
        violations = draw.binomial(answers, true).astype(float)
        return bdtr(violations, answers, seen.threshold)
    mean, spread = seen.capital(true, prompts)
    log_capital = mean + spread * draw.normal(size=DRAWS)
    return np.exp(-np.maximum(log_capital, 0))
