"""Rates are exact pooled counts."""

import io
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.objective.behavior_rate import BehaviorRate


def rate(*updates: tuple[list[float], list[float]]) -> BehaviorRate:
    made = BehaviorRate(len(updates[0][0]))
    for violations, opportunities in updates:
        made.update(torch.tensor(violations), torch.tensor(opportunities))
    return made


def test_pools_counts_and_never_averages_rates() -> None:
    # The mean of the rates 1/1 and 1/9 is 5/9.
    pooled = rate(([1.0, 0.0], [1.0, 2.0]), ([1.0, 3.0], [9.0, 3.0])).compute()
    assert pooled.dtype == torch.float64
    assert pooled.tolist() == [2 / 10, 3 / 5]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=8),
    st.data(),
)
def test_any_split_of_the_counts_gives_the_same_bits(counts: list[tuple[int, int]], data) -> None:
    cuts = sorted({0, len(counts), *data.draw(st.lists(st.integers(0, len(counts)), max_size=4))})
    parts = [counts[a:b] for a, b in pairwise(cuts)]
    split = BehaviorRate(2)
    for part in parts:
        violations, opportunities = (torch.tensor([float(sum(column)), 0.0]) for column in zip(*part, strict=True))
        split.update(violations, opportunities)
    total = [sum(column) for column in zip(*counts, strict=True)]
    got = split.compute()[0].item()
    assert got == total[0] / total[1] if total[1] else math.isnan(got)


def test_no_opportunity_leaves_the_state_and_is_no_rate() -> None:
    measured = rate(([1.0, 0.0], [4.0, 0.0]))
    state = {name: tensor.clone() for name, tensor in measured.state_dict().items()}
    measured.update(torch.zeros(2), torch.zeros(2))
    assert all(torch.equal(tensor, state[name]) for name, tensor in measured.state_dict().items())
    rates = measured.compute()
    assert rates[0] == 0.25 and rates[1].isnan()


def test_counts_are_exact_beyond_float32() -> None:
    measured = BehaviorRate(2)
    large = torch.tensor([2.0**24, 2.0**24], dtype=torch.float64)
    measured.update(large, large)
    measured.update(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    assert measured.violations.tolist() == [2**24 + 1, 2**24]
    assert measured.compute()[1] == 2**24 / (2**24 + 1)


@pytest.mark.parametrize("size", [1, 3])
def test_state_survives_a_checkpoint(size: int) -> None:
    def counts(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        opportunities = torch.randint(1, 100, (size,), generator=torch.Generator().manual_seed(seed))
        return opportunities // 3, opportunities

    original = BehaviorRate(size)
    original.update(*counts(0))
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    resumed = BehaviorRate(size)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for measured in (original, resumed):
        measured.update(*counts(1))
    assert torch.equal(original.compute(), resumed.compute())
    expected = sum(counts(seed)[0] for seed in range(2)) / sum(counts(seed)[1] for seed in range(2)).double()
    assert torch.equal(resumed.compute().reshape(-1), expected)
