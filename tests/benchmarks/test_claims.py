"""docs/claims.md has the differences that `benchmarks.claims` computes, and no others."""

import re
from pathlib import Path

import pytest

from benchmarks import claims

PAGE = Path(__file__).parents[2] / "docs/claims.md"
DIFFERENCE = re.compile(r"[+-]\d+\.\d+ \([+-]\d+\.\d+ to [+-]\d+\.\d+\)")


def test_every_difference_of_the_page_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    claims.main()
    computed = set(DIFFERENCE.findall(capsys.readouterr().out))
    told = DIFFERENCE.findall(PAGE.read_text())
    assert len(told) > 30 and set(told) <= computed


def test_equal_runs_of_two_studies_are_all_seeds() -> None:
    (method,) = claims.SAME
    assert sorted(claims.values(method, "rate/lava")) == [0, 1, 2, 3, 4]
