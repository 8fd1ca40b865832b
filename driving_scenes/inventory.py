"""Counts of the files and scenes that a split is read from: expected, and missing or corrupt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from driving_scenes.errors import InputError

ENOUGH = 0.99
"""Share of pieces that a run needs, because downloads have gaps."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of one kind that a split needs.

    Args:
        kind: plural, such as ``logs``.
        expected: number of pieces.
        faults: a line for each missing or corrupt piece, which begins with its path.
        needed: share without which a run doesn't start.
    """

    kind: str
    expected: int
    faults: tuple[str, ...] = ()
    needed: float = ENOUGH

    @property
    def present(self) -> int:
        return self.expected - len(self.faults)

    @property
    def enough(self) -> bool:
        return self.present >= self.needed * self.expected


def check_enough(pieces: Iterable[Pieces], name: str, allowing: str) -> None:
    """Raise an `InputError` if too few pieces of one kind are there.

    Args:
        name: the data set.
        allowing: the setting that allows less.
    """
    lacking = [kind for kind in pieces if not kind.enough]
    if lacking:
        counts = ", ".join(f"{kind.present:,} of {kind.expected:,} {kind.kind}" for kind in lacking)
        raise InputError(
            f"Expected {ENOUGH:.0%} of the pieces of {name}, but got {counts} (such as {lacking[0].faults[0]}), try "
            f"`python -m lightning_cgrpo data -c CONFIG`, which lists what is missing, or {allowing} to go without."
        )
