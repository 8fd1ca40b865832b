"""How a rollout is cut into optimizer steps."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.grpo.minibatches import (
    Share,
    micro_batches,
    minibatches,
    partition_units,
    put_rows,
    token_batches,
    with_targets,
)
from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP
from tests.fake_world import in_processes


def steps(count: int, *length: int) -> Examples:
    actions = torch.zeros(count, *length, dtype=torch.int64)
    return Examples({}, actions, torch.ones_like(actions, dtype=torch.bool), torch.zeros(count, dtype=torch.int64))


def answers(count: int) -> Examples:
    return steps(count, 3)


def parts(examples: Examples, size: int | None, group_size: int = 4, **numbers: int) -> list[tuple[Tensor, float]]:
    share = Share.of(examples, group_size)
    cut = partition_units(share, size, **{"seed": 0, "update": 0, "epoch": 0, **numbers})
    return list(minibatches(share, cut, examples.actions.device))


def on_processes(
    make: Callable[[int], Examples], counts: list[int], monkeypatch: pytest.MonkeyPatch, *arguments: int
) -> list[list[tuple[Tensor, float]]]:
    """Each process's parts, its rows numbered over all processes."""
    every, _ = in_processes(monkeypatch, lambda rank: parts(make(counts[rank]), *arguments), len(counts))
    return [[(rows + sum(counts[:rank]), scale) for rows, scale in got] for rank, got in enumerate(every)]


class TestMinibatchesOfSteps:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 300), st.integers(1, 120), st.integers(0, 5))
    def test_partition_into_equal_parts(self, total: int, size: int, update: int) -> None:
        got = parts(steps(total), size, update=update)
        assert torch.equal(torch.cat([rows for rows, _ in got]).sort().values, torch.arange(total))
        lengths = [len(rows) for rows, _ in got]
        assert len(got) == math.ceil(total / size)
        assert max(lengths) <= size and max(lengths) - min(lengths) <= 1
        assert [scale for _, scale in got] == [total / length for length in lengths]

    def test_as_a_whole_in_order(self) -> None:
        for size in (None, 10, 11):
            ((rows, scale),) = parts(steps(10), size)
            assert rows.tolist() == list(range(10)) and scale == 1.0

    def test_is_drawn_anew_for_every_update_and_epoch(self) -> None:
        def order(**numbers: int) -> tuple[int, ...]:
            return tuple(torch.cat([rows for rows, _ in parts(steps(50), 20, **numbers)]).tolist())

        drawn = [order(), order(update=1), order(epoch=1), order(seed=1)]
        assert len(set(drawn)) == 4 and tuple(range(50)) not in drawn
        assert order() == drawn[0]


class TestMinibatchesOfAnswers:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 30), st.integers(2, 8), st.integers(1, 60))
    def test_partition_into_whole_groups(self, groups: int, group_size: int, size: int) -> None:
        got = parts(answers(groups * group_size), size, group_size)
        assert torch.equal(torch.cat([rows for rows, _ in got]).sort().values, torch.arange(groups * group_size))
        lengths = [len(rows) for rows, _ in got]
        assert max(lengths) <= size
        assert [scale for _, scale in got] == [groups * group_size / length for length in lengths]
        if size >= group_size:
            for rows, _ in got:
                assert torch.equal(rows, torch.cat([torch.arange(group_size) + g for g in rows[::group_size]]))
                assert rows[::group_size].remainder(group_size).eq(0).all()
            assert max(lengths) - min(lengths) <= group_size
        else:
            assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("make", "counts", "size"),
    [
        *((steps, counts, 10) for counts in ([37], [20, 17], [0, 37], [12, 1, 24], [37, 0, 0])),
        *((answers, counts, 4) for counts in ([24], [12, 12], [16, 8], [8, 4, 12], [0, 24, 0])),
        *((answers, [8, 4, 12], size) for size in (3, 10, 24)),
    ],
)
def test_processes_share_the_same_parts(
    make: Callable[[int], Examples], counts: list[int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = parts(make(sum(counts)), size)
    shares = on_processes(make, counts, monkeypatch, size)
    for number, (whole, scale) in enumerate(single):
        # As sets: within a part the order is that of the processes.
        together = torch.cat([share[number][0] for share in shares])
        assert torch.equal(together.sort().values, whole.sort().values)
        assert all(share[number][1] == scale for share in shares)
    assert all(len(share) == len(single) for share in shares)


class TestTargets:
    MASK = torch.arange(4) < torch.tensor([[3, 1], [4, 2], [0, 2]])[..., None]  # [B, G, T]

    @property
    def rollouts(self) -> Rollouts:
        """Each action and observation tells its place."""
        places = torch.arange(24).view(3, 2, 4)
        return Rollouts(places, self.MASK, {"observations": places[..., None].float()})

    def test_of_steps(self) -> None:
        rollouts = self.rollouts
        examples = CategoricalMLP(1, 2).examples(rollouts)
        values = rollouts.actions * 10
        examples = with_targets(with_targets(examples, rollouts, a=values), rollouts, b=values + 1)
        assert examples.actions.tolist() == [0, 1, 2, 4, 8, 9, 10, 11, 12, 13, 20, 21]
        assert torch.equal(examples.targets["a"], examples.actions * 10)
        assert torch.equal(examples.targets["b"], examples.actions * 10 + 1)
        assert examples.inputs["observations"][:, 0].tolist() == examples.actions.tolist()
        assert examples.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
        part = examples[torch.tensor([7, 0])]
        assert part.actions.tolist() == [11, 0] and part.targets["a"].tolist() == [110, 0]

    def test_of_answers(self) -> None:
        rollouts = self.rollouts
        rows = (rollouts.actions.flatten(0, 1), rollouts.mask.flatten(0, 1), torch.arange(3).repeat_interleave(2))
        whole = Examples({}, *rows)
        examples = with_targets(whole, rollouts, a=rollouts.actions * 10)
        assert torch.equal(examples.targets["a"], examples.actions * 10)
        # Trimmed to the longest answer of the part.
        part = examples[torch.tensor([5, 1])]
        assert part.mask.tolist() == [[True, True], [True, False]]
        assert part.targets["a"].tolist() == [[200, 210], [40, 50]] and part.group.tolist() == [2, 0]

    def test_steps_go_back_to_their_places(self) -> None:
        target = torch.zeros(12)
        rows = torch.tensor([7, 0, 3])
        put_rows(target, rows, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        assert target[rows].tolist() == [1, 2, 3] and target.sum() == 6 and target.dtype == torch.float32

    def test_answers_go_back_to_their_places(self) -> None:
        """Every micro-batch is trimmed to its own length; together they give the whole."""
        mask = self.MASK.flatten(0, 1)
        values = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) * mask
        examples = Examples({}, mask.long(), mask, torch.zeros(6, dtype=torch.int64), targets={"values": values})
        target = torch.zeros(6, 4)
        for piece in micro_batches(torch.tensor([5, 1, 3, 0, 4, 2]), 2):
            put_rows(target, piece, examples[piece].targets["values"])
        assert torch.equal(target, values)


class TestTokenBatches:
    """Prompts of 4, 1 and 2 tokens, two answers each."""

    def examples(self) -> Examples:
        mask = torch.arange(6) < torch.tensor([3, 1, 6, 2, 5, 5])[:, None]
        prompts = torch.arange(4) < torch.tensor([4, 1, 2])[:, None]
        group = torch.arange(3).repeat_interleave(2)
        return Examples({}, mask.long(), mask, group, {"prompt_mask": prompts})

    @pytest.mark.parametrize(
        ("tokens", "shares", "sizes"),
        [
            (8, True, [2, 1, 1, 1, 1]),  # 4 + 3 + 1; 1 + 6; 1 + 2; 2 + 5; 2 + 5
            (9, True, [2, 2, 1, 1]),  # 1 + 6 + 2
            (29, True, [6]),
            (28, True, [5, 1]),
            (14, False, [2, 2, 2]),  # 2 (4 + 3), 2 (1 + 6), 2 (2 + 5)
            (59, False, [5, 1]),  # 5 (4 + 6)
            (1, True, [1] * 6),
        ],
    )
    def test_by_hand(self, tokens: int, shares: bool, sizes: list[int]) -> None:
        rows = torch.arange(6)
        pieces = token_batches(self.examples(), rows, tokens, shares)
        assert [len(piece) for piece in pieces] == sizes and torch.equal(torch.cat(pieces), rows)

    def test_the_order_of_a_minibatch(self) -> None:
        rows = torch.tensor([5, 2, 4])
        assert [piece.tolist() for piece in token_batches(self.examples(), rows, 15, True)] == [[5, 2], [4]]
        assert [piece.tolist() for piece in token_batches(self.examples(), rows[:0], 15, True)] == [[]]
