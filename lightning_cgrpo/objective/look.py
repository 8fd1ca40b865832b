"""A declared look: the first `certify`, for which training prepares.

`target_of` imports SciPy itself, so that the command line checks a declaration without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_cgrpo.objective.constraint import ObjectiveError

FIRST = 0.8
"""Share of the error that the first look at a lineage may spend."""


@dataclass(frozen=True)
class Look:
    """The first look at the trained policy that training prepares for.

    Args:
        prompts: of the look.
        confidence: of the certificate, over all constraints together and all looks.
        chance: probability that a policy at its targets is certified.
    """

    prompts: int = 1_000
    confidence: float = 0.95
    chance: float = 0.9

    def __post_init__(self) -> None:
        is_integer = isinstance(self.prompts, int) and not isinstance(self.prompts, bool)
        if not is_integer or self.prompts < 1:
            raise ObjectiveError(f"Expected look: to have prompts: of at least 1, but got {self.prompts!r}.")
        for name in ("confidence", "chance"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0.5 <= value < 1:
                raise ObjectiveError(f"Expected look: to have {name}: from 0.5 to below 1, but got {value!r}.")

    @classmethod
    def declared(cls, given: Any) -> Look | None:
        """The look of a configuration; None without one."""
        if given is None or isinstance(given, Look):
            return given
        if not isinstance(given, Mapping):
            raise ObjectiveError(
                f"Expected look: to be like {{prompts: 1000, confidence: 0.95, chance: 0.9}}, but got {given!r}."
            )
        unknown = given.keys() - {"prompts", "confidence", "chance"}
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            raise ObjectiveError(f"Expected look: to have prompts, confidence and chance, but got {names}.")
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def error(self) -> float:
        """The error that the first look may spend, over all constraints."""
        return FIRST * (1 - self.confidence)

    def level(self, constraints: int) -> float:
        """The level of one test among `constraints`, at the first step of Holm's method."""
        return self.error / constraints

    def can_certify(self, threshold: float, constraints: int) -> bool:
        """Whether the exact test certifies a rate's threshold if no prompt violates it.

        Example:
            >>> Look(321).can_certify(0.0115, 1), Look(20).can_certify(0.0115, 1)
            (True, False)
        """
        return (1 - threshold) ** self.prompts <= self.level(constraints)

    def chance_of_each(self, constraints: int) -> float:
        """The chance of each of independent tests, of which all pass with `chance`."""
        return self.chance ** (1 / constraints)

    def __str__(self) -> str:
        return f"{self.prompts:,} prompts, confidence {self.confidence:g}, chance {self.chance:g}"


@dataclass(frozen=True)
class Chance:
    """The probability that `certify` certifies a policy, by what a validation tells of it.

    Args:
        whole: of all constraints together.
        each: by constraint, at its level among all.
        more: by larger numbers of prompts.
    """

    whole: float
    each: Mapping[str, float]
    more: Mapping[int, float]


def target_of(threshold: float, look: Look, constraints: int, prompts: float | None = None) -> float | None:
    """The rate of violation of which the exact test certifies `threshold` with the look's chance; None for no rate.

    Args:
        constraints: number of constraints that share the look.
        prompts: to which the constraint applies; by default those of the look.

    Example:
        >>> look = Look(1_000, confidence=0.95, chance=0.8)
        >>> round(target_of(0.15, look, 1), 3), round(target_of(0.15, look, 3), 3)
        (0.121, 0.11)
    """
    from scipy.special import bdtri

    from lightning_cgrpo.objective.verdicts.binomial import most_certified

    number = math.floor(look.prompts if prompts is None else prompts)
    # The rate at which at most as many violations as are certified happen with the chance of each test.
    violations = most_certified(number, threshold, look.level(constraints))
    if violations < 0:
        return None
    return float(bdtri(violations, number, look.chance_of_each(constraints)))
