"""How many specifications have a certified policy after how many training runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.specifications.job import SHARED, Job, Run
from benchmarks.specifications.judged import Answers, certificate, rewards, standing


@dataclass(frozen=True)
class Policy:
    """A run's policy under a specification.

    Args:
        order: larger for a policy that is chosen before another, see `judged.standing`: those that `certify` certifies
            with the declared chance by their reward, then the others by the chance.
        certified: whether the look certifies the policy.
        rates: measured in the look, by constraint.
        rewards: of the look's answers ``[N]``.
        told: chance of a certificate on the run's card; NaN without a declared look.
    """

    run: Run
    order: tuple[bool, float]
    certified: bool
    rates: dict[str, float]
    rewards: np.ndarray
    told: float = math.nan


class Policies:
    """The policies of all committed runs of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.of = cache(self._of)

    def answers(self, run: Run) -> Answers:
        with np.load(self.job.answers / f"{run}.npz") as file:
            return dict(file)

    def seeds(self, method: str) -> int:
        """The number of seeds with which all runs of the method are there; of the pool, whether there is any."""
        if method == "pool":
            return min(1, len(self.runs(method, 1)))
        seeds = 0
        while all(self._has(run) for run in self.job.runs(method, seeds + 1)):
            seeds += 1
        return seeds

    def runs(self, method: str, seeds: int) -> list[Run]:
        """The method's runs with so many seeds, as far as they are there."""
        return [run for run in self.job.runs(method, seeds) if self._has(run)]

    @property
    def methods(self) -> list[str]:
        """Methods of which a run is there."""
        return [method for method in self.job.methods if self.runs(method, 1)]

    def _has(self, run: Run) -> bool:
        return (self.job.answers / f"{run}.npz").exists()

    def candidates(self, method: str, name: str, seeds: int) -> list[Policy]:
        """The policies from which the method chooses for a specification, the one that it chooses first."""
        runs = [run for run in self.runs(method, seeds) if method in SHARED or run.name == name]
        return sorted((self.of(run, name) for run in runs), key=lambda policy: policy.order, reverse=True)

    def chosen(self, name: str) -> dict[str, Policy]:
        """The policy that each method chooses for a specification from its runs of one seed, if it has any."""
        chosen = {}
        for method in self.methods:
            candidates = self.candidates(method, name, 1)
            if candidates:
                chosen[method] = candidates[0]
        return chosen

    def _of(self, run: Run, name: str) -> Policy:
        answers = self.answers(run)
        told = standing(self.job, name, answers)
        assert told.chance is not None
        look = certificate(self.job, name, answers)
        rates = {constraint: of["rate"] for constraint, of in look["constraints"].items()}
        order = told.qualified, told.reward if told.qualified else told.chance
        certified = look["decision"] == "certified"
        return Policy(run, order, certified, rates, rewards(self.job, name, answers).numpy(), float(answers["chance"]))


Counts = Callable[[str, Policy], bool]
"""A test whether a policy counts under the specification of this name."""


def certified(name: str, policy: Policy) -> bool:
    return policy.certified


def unsurpassed(policies: Policies) -> Counts:
    """Count a certified policy, unless a certified one that a method chooses from one seed has more reward.

    A reward is more if the 95 % interval of the difference, over the same problems, is above 0.
    """
    best: dict[str, Policy] = {}
    for name in policies.job.specifications:
        certified_ones = [policy for policy in policies.chosen(name).values() if policy.certified]
        if certified_ones:
            best[name] = max(certified_ones, key=lambda policy: policy.rewards.mean())

    def counts(name: str, policy: Policy) -> bool:
        if not policy.certified:
            return False
        mean, half = difference(best[name], policy) if name in best else (0.0, 0.0)
        return mean - half <= 0

    return counts


def chance_in_pool(counting: Sequence[bool], runs: int) -> float:
    """The probability that the policy chosen from so many of the pool's runs, drawn at random, counts.

    The policy at place r of the order is chosen if it is drawn and none before it: in C(n - r, k - 1) of the C(n, k)
    draws of k of n runs.

    Args:
        counting: whether each policy counts, in the order in which they are chosen.

    Example:
        >>> [chance_in_pool([True, False], runs) for runs in (1, 2)]
        [0.5, 1.0]
    """
    draws = math.comb(len(counting), runs)
    chance = 0.0
    for place, counts in enumerate(counting, start=1):
        if counts:
            chance += math.comb(len(counting) - place, runs - 1) / draws
    return chance


def share_of(policies: Policies, method: str, seeds: int, counts: Counts) -> float:
    """The share of the specifications whose policy, chosen from so many seeds, counts."""
    return float(
        np.mean([counts(name, policies.candidates(method, name, seeds)[0]) for name in policies.job.specifications])
    )


def shares_of_pool(policies: Policies, counts: Counts) -> list[float]:
    """The expected share after 1, 2, ... of the pool's runs, which all specifications share."""
    pools = []
    for name in policies.job.specifications:
        pools.append([counts(name, policy) for policy in policies.candidates("pool", name, 1)])
    runs = range(1, len(pools[0]) + 1)
    return [float(np.mean([chance_in_pool(counting, count) for counting in pools])) for count in runs]


def difference(first: Policy, second: Policy) -> tuple[float, float]:
    """Mean difference of the rewards on the same problems, and the half of its 95 % interval over problems."""
    apart = first.rewards - second.rewards
    return float(apart.mean()), float(1.96 * apart.std(ddof=1) / len(apart) ** 0.5)


def rates_text(rates: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{rate:.2f}" if name == "tokens" else f"{rate:.3f}" for name, rate in rates)
