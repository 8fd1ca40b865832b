"""Rates are exact pooled counts."""

import math
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.objective.behavior_rate import BehaviorRate


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=8),
    st.data(),
)
def test_any_split_of_the_counts_gives_the_same_bits(counts: list[tuple[int, int]], data) -> None:
    cuts = sorted({0, len(counts), *data.draw(st.lists(st.integers(0, len(counts)), max_size=4))})
    parts = [counts[a:b] for a, b in pairwise(cuts)]
    split = BehaviorRate([False, False])
    for part in parts:
        violations, opportunities = (torch.tensor([float(sum(column)), 0.0]) for column in zip(*part, strict=True))
        split.update(violations, opportunities)
    total = [sum(column) for column in zip(*counts, strict=True)]
    got = split.compute()[0].item()
    assert got == total[0] / total[1] if total[1] else math.isnan(got)


def test_counts_are_exact_beyond_float32() -> None:
    measured = BehaviorRate([False, False])
    large = torch.tensor([2.0**24, 2.0**24], dtype=torch.float64)
    measured.update(large, large)
    measured.update(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    assert measured.violations.tolist() == [2**24 + 1, 2**24]
    assert measured.compute()[1] == 2**24 / (2**24 + 1)
