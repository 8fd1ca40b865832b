"""A claim of the paper, and what decides it: comparisons of committed runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

COMPARABLE = 0.02
"""Largest difference of rates and scores that counts as comparable."""


@dataclass(frozen=True)
class Comparison:
    """A difference that a claim expects to have a sign, or to be small.

    Args:
        measure: words.
        methods: folders and names of runs, such as ``gsm8k/paper/gdpo``; several are averaged by seed.
        others: what is subtracted, one for each method: a method, or a number.
        key: see `benchmarks.claims.values`.
        expected: "same" is a difference below `margin`, to either side.
        other_key: of the others, by default `key`.
    """

    measure: str
    methods: tuple[str, ...]
    others: tuple[str | float, ...]
    key: str
    expected: Literal["more", "less", "same"] = "more"
    margin: float = COMPARABLE
    other_key: str | None = None


@dataclass(frozen=True)
class Spread:
    """The claim that a measure of the methods varies less between seeds than the others'.

    Args:
        key: of one method's series, or ``test/...`` of several methods' tests.
    """

    measure: str
    methods: tuple[str, ...]
    others: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class NotRun:
    """Runs that would decide a claim, and their CPU minutes."""

    what: str
    command: str
    minutes: int


Cell = tuple[Comparison | Spread | NotRun, ...]
"""Tests of one method; empty if the claim says nothing of it."""


@dataclass(frozen=True)
class Claim:
    """A claim, with the tests of the paper's method and of this package's default."""

    text: str
    paper: Cell = ()
    default: Cell = ()

    @property
    def cells(self) -> tuple[Cell, Cell]:
        return self.paper, self.default


@dataclass(frozen=True)
class Section:
    """Claims about one problem; `paper` and `default` name the two methods' settings."""

    title: str
    text: str
    paper: str
    default: str
    claims: list[Claim] = field(hash=False)


def compare(
    measure: str,
    method: str,
    other: str | float,
    key: str,
    expected: Literal["more", "less", "same"] = "more",
    margin: float = COMPARABLE,
) -> Comparison:
    """A comparison of one method with one other, or with a number."""
    return Comparison(measure, (method,), (other,), key, expected, margin)
