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
