"""Populations of prompts with a known rate, of which `benchmarks.verdicts` draws samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ANSWERS = 8
"""Answers to each prompt."""
Array = NDArray[Any]


def answers(draw: np.random.Generator, rate: float, correlation: float, shape: tuple[int, ...]) -> Array:
    """Violations among the answers to each prompt, of any shape; the rates of two answers correlate."""
    if correlation == 0:
        return draw.binomial(ANSWERS, rate, shape)
    concentration = 1 / correlation - 1
    return draw.binomial(ANSWERS, draw.beta(rate * concentration, (1 - rate) * concentration, shape))


@dataclass(frozen=True)
class Population:
    """Prompts whose answers have opportunities of their own.

    Args:
        rate: true rate, E[violations] / E[opportunities].
        most: largest number of opportunities of a prompt, as declared.
        draw: violations and opportunities of N prompts, ``[N]`` each.
    """

    rate: float
    most: float
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]


def equal(rate: float, correlation: float) -> Population:
    """Eight answers, of one opportunity each."""

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        return answers(of, rate, correlation, (prompts,)).astype(float), np.full(prompts, float(ANSWERS))

    return Population(rate, ANSWERS, draw)


def violators_with(rate: float, many: int) -> Population:
    """Prompts that violate at all of `many` opportunities; the others have one, and never do."""
    share = rate / (many * (1 - rate) + rate)

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        bad = of.random(prompts) < share
        opportunities = np.where(bad, float(many), 1.0)
        return np.where(bad, opportunities, 0.0), opportunities

    return Population(rate, many, draw)


def callers(rate: float) -> Population:
    """Prompts make one call on average, violators six, all in violation; at most 16."""
    share = rate / (6 * (1 - rate) + rate)

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        bad = of.random(prompts) < share
        calls = np.minimum(np.where(bad, of.poisson(6, prompts), of.poisson(1, prompts)), 16).astype(float)
        return np.where(bad, calls, 0.0), calls

    return Population(rate, 16, draw)


def long_answers(rate: float, share: float, long: int, short: int) -> Population:
    """A `share` of the answers is `long`, and violates; the rate is at most the share of their opportunities."""
    part = share * long / (share * long + (1 - share) * short)
    within = min(1.0, rate / part)

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        are_long = of.random(prompts) < share
        violations = np.where(are_long, of.binomial(long, within, prompts), 0).astype(float)
        return violations, np.where(are_long, float(long), float(short))

    return Population(within * part, long, draw)


def lognormal(rate: float, correlation: float | None) -> Population:
    """Lengths of 20 on average, at most 256; an answer violates at all steps or at none, or with a rate of its own."""

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        lengths = np.minimum(np.ceil(of.lognormal(2.5, 1.0, prompts)), 256)
        if correlation is None:
            return np.where(of.random(prompts) < rate, lengths, 0.0), lengths
        concentration = 1 / correlation - 1
        own = of.beta(rate * concentration, (1 - rate) * concentration, prompts)
        return of.binomial(lengths.astype(int), own).astype(float), lengths

    return Population(rate, 256, draw)


def some_long(rate: float) -> Population:
    """One prompt of 20 has 80 opportunities, the others 8; each violates at all or at none."""

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        opportunities = np.where(of.random(prompts) < 0.05, 80.0, 8.0)
        return np.where(of.random(prompts) < rate, opportunities, 0.0), opportunities

    return Population(rate, 80, draw)


UNEQUAL: dict[str, Callable[[float], Population]] = {
    "violators have 6, others 1": lambda rate: violators_with(rate, 6),
    "violators make 6 calls, others 1": callers,
    "5 % long, which violate": lambda rate: long_answers(rate, 0.05, 80, 8),
    "5 % long": some_long,
    "lognormal lengths, all or none": lambda rate: lognormal(rate, None),
    "lognormal lengths, correlation 0.3": lambda rate: lognormal(rate, 0.3),
    "1 % very long": lambda rate: long_answers(rate, 0.01, 1_000, 10),
}
"""Populations by rate; of the last, most small samples hold no long answer."""
EQUAL: dict[str, Callable[[float], Population]] = {
    f"equal, correlation {correlation:g}": lambda rate, correlation=correlation: equal(rate, correlation)  # type: ignore[misc]
    for correlation in (0.0, 0.3, 0.7)
}


@dataclass(frozen=True)
class Clusters:
    """Clusters of prompts with one answer each, of which a cluster's have a rate of their own.

    Args:
        prompts: in all, at least.
        size: prompts of a cluster.
        correlation: of two answers to prompts of a cluster; 1 for equal answers.
        unequal: whether sizes are drawn evenly from 1 to 2 `size` - 1.
    """

    prompts: int
    size: int
    correlation: float
    unequal: bool = False

    def draw(self, of: np.random.Generator, rate: float) -> tuple[Array, Array]:
        """Violations and opportunities of the clusters."""
        number = -(-self.prompts // self.size)
        sizes = of.integers(1, 2 * self.size, number) if self.unequal else np.full(number, self.size)
        if self.correlation == 1:
            rates = (of.random(number) < rate).astype(float)
        else:
            concentration = 1 / self.correlation - 1
            rates = of.beta(rate * concentration, (1 - rate) * concentration, number)
        return of.binomial(sizes, rates).astype(float), sizes.astype(float)

    @property
    def most(self) -> int:
        return 2 * self.size - 1 if self.unequal else self.size


CLUSTERED = {
    "pairs in other words, 400": Clusters(400, 2, 1.0),
    "groups of 5, correlation 0.3, 400": Clusters(400, 5, 0.3),
    "groups of 5, the same answer, 400": Clusters(400, 5, 1.0),
    "drives of 20 frames, correlation 0.3, 1,000": Clusters(1_000, 20, 0.3),
    "drives of 1 to 39 frames, correlation 0.3, 1,000": Clusters(1_000, 20, 0.3, unequal=True),
    "navtest: 137 logs of 89 frames, correlation 0.1": Clusters(12_146, 89, 0.1),
    "navtest: 137 logs of 1 to 177 frames, correlation 0.1": Clusters(12_146, 89, 0.1, unequal=True),
}
"""Prompts that belong together."""


def few_bad(rate: float, share: float) -> Population:
    """Eight answers; a `share` of the prompts always violates, the others at a rate of their own."""
    others = (rate - share) / (1 - share)

    def draw(of: np.random.Generator, prompts: int) -> tuple[Array, Array]:
        within = np.where(of.random(prompts) < share, 1.0, others)
        return of.binomial(ANSWERS, within).astype(float), np.full(prompts, float(ANSWERS))

    return Population(rate, ANSWERS, draw)


EQUAL["equal, a few bad prompts"] = lambda rate: few_bad(rate, min(0.0075, rate / 2))
