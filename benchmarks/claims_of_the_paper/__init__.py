"""What the paper claims, and which committed runs test it, with the paper's method and with this package's default."""

from collections.abc import Iterator

from benchmarks.claims_of_the_paper.claim import Comparison, NotRun, Section, Spread, compare
from benchmarks.claims_of_the_paper.driving import driving
from benchmarks.claims_of_the_paper.gridworld import gridworld
from benchmarks.claims_of_the_paper.word_problems import word_problems

__all__ = ["Comparison", "NotRun", "Section", "Spread", "compare", "sections"]


def sections() -> Iterator[Section]:
    yield gridworld()
    yield driving()
    yield word_problems()
