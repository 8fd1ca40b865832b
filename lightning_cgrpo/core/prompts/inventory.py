"""Counts of the pieces of a data set, for the command `data`: expected, and missing or corrupt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pieces:
    """Pieces of one kind that a split needs.

    Args:
        kind: plural, such as ``logs``.
        expected: number of pieces.
        faults: a line for each missing or corrupt piece, which begins with its path.
        note: further facts, for a line of their own.
        needed: share without which a run doesn't start.
    """

    kind: str
    expected: int
    faults: tuple[str, ...] = ()
    note: str = ""
    needed: float = 1.0

    @property
    def present(self) -> int:
        return self.expected - len(self.faults)

    @property
    def enough(self) -> bool:
        return self.present >= self.needed * self.expected
