"""Groups that change processes: every process's share of tokens, and each answer with its own prompt and targets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo import exchange as module
from lightning_cgrpo.grpo import minibatches as cutting
from lightning_cgrpo.grpo.exchange import Exchange, assign, group_tokens
from lightning_cgrpo.grpo.minibatches import Share, minibatches, partition

GROUP_SIZE = 2


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_the_fullest_process_has_one_group_more_than_its_share(tokens, processes, epochs, parts):
    steps = [[(group * (epoch + 1)) % parts for group in range(len(tokens))] for epoch in range(epochs)]
    owners = assign(tokens, steps, processes)
    assert len(owners) == len(tokens) and set(owners) <= set(range(processes))
    if epochs > 1:  # the fewest tokens over all of a group's steps
        return
    for number in range(parts):
        of_step = [group for group in range(len(tokens)) if steps[0][group] == number]
        loads = [sum(tokens[group] for group in of_step if owners[group] == rank) for rank in range(processes)]
        assert max(loads) - min(loads) <= max([tokens[group] for group in of_step], default=0)


def test_steps_are_balanced_one_by_one():
    """Four groups in two steps: pairs of equal length meet in one step, and are parted."""
    assert assign([9, 9, 1, 1], [[0, 0, 1, 1]], 2) == [0, 1, 0, 1]
    assert assign([9, 1, 9, 1], [[0, 0, 1, 1]], 2) == [0, 1, 1, 0]


class Wire:
    """`dist.all_to_all_single` among processes that run one after another, until each has what the others send."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # by process and call
        self.rank, self.call = 0, 0

    def __call__(self, output: Tensor, given: Tensor, received: list[int], sent: list[int]) -> None:
        assert len(output) == sum(received) and len(given) == sum(sent) and given.is_contiguous()
        self.sent[self.rank, self.call] = given.split(sent)
        parts = [self.sent[rank, self.call][self.rank] for rank in range(len(sent)) if (rank, self.call) in self.sent]
        if len(parts) == len(sent):
            assert [len(part) for part in parts] == received
            output.copy_(torch.cat(parts))
        self.call += 1


def examples(groups: range, lengths: list[int], images: bool) -> Examples:
    """Answer g of prompt b has `lengths[b] + g` tokens, all named after prompt and answer; as wide as needed here."""
    width = max([lengths[b] for b in groups], default=0) + GROUP_SIZE
    names = torch.tensor([[10 * b + g for g in range(GROUP_SIZE)] for b in groups]).view(-1)
    sizes = torch.tensor([[lengths[b] + g for g in range(GROUP_SIZE)] for b in groups]).view(-1, 1)
    mask = torch.arange(width) < sizes
    prompts = torch.tensor([b + 1 for b in groups]).view(-1, 1)
    longest = max(groups, default=0) + 1
    shared = {
        "prompt_ids": prompts.expand(-1, longest).clone(),
        "prompt_mask": torch.arange(longest) >= longest - prompts,
    }
    if images:
        shared["grids"] = prompts[..., None].expand(-1, 1, 3)
    actions = torch.where(mask, names.view(-1, 1), 0)
    group = torch.arange(len(groups)).repeat_interleave(GROUP_SIZE)
    return Examples({}, actions, mask, group, shared, {"weights": actions / 7})


LENGTHS = [3, 40, 1, 1, 12, 30, 2]
SHARES = [range(3), range(3, 7), range(7, 7)]
"""The last process has no prompts, and the first no images."""


def on_every_process(work, monkeypatch, shares=SHARES):
    """What `work` of (examples, share) returns on each process; `dist` and the gathering are replaced."""
    given = [examples(groups, LENGTHS, images=rank == 1) for rank, groups in enumerate(shares)]
    counts = [len(one) for one in given]
    named = [{n: (t.dtype, tuple(t.shape[1:])) for n, t in module._tensors(one).items()} for one in given]
    tokens = [group_tokens(one, GROUP_SIZE, True) for one in given]
    wire = Wire()
    monkeypatch.setattr(cutting, "gather_counts", lambda count, device: counts)
    monkeypatch.setattr(module, "gathered", lambda mine: list(zip(tokens, named, strict=True)))
    monkeypatch.setattr(module.dist, "all_to_all_single", wire)
    found = []
    for _ in range(3):  # of two exchanges, the second sends what the first brings
        found = []
        for rank, one in enumerate(given):
            wire.rank, wire.call = rank, 0
            for place in (module, cutting):
                monkeypatch.setattr(place, "world", lambda rank=rank: (rank, len(shares)))
            found.append(work(one, Share.of(one, GROUP_SIZE)))
    return given, found


@pytest.mark.parametrize("size", [None, 3 * GROUP_SIZE, 1])
def test_answers_arrive_whole_with_their_prompts(size, monkeypatch):
    cuts = []

    def work(one, share):
        cuts[:] = [partition(share, size, 0, 0, epoch) for epoch in range(2)]
        plan = Exchange.balancing(one, share, cuts, shares_prompts=True)
        return plan, plan.moved(one)

    _, found = on_every_process(work, monkeypatch)
    together = []
    for plan, moved in found:
        numbers = plan.share.numbers
        assert torch.equal(numbers, numbers.sort().values) and plan.share.total == len(LENGTHS) * GROUP_SIZE
        assert len(numbers) == len(moved) == len(moved.group)
        for row, number in enumerate(numbers.tolist()):
            b, g = divmod(number, GROUP_SIZE)
            own = moved.mask[row]
            assert own.sum() == LENGTHS[b] + g and (moved.actions[row, own] == 10 * b + g).all()
            assert torch.equal(moved.targets["weights"][row], torch.where(own, (10 * b + g) / 7, 0))
            prompt = int(moved.group[row])
            seen = moved.shared["prompt_mask"][prompt]
            assert seen.sum() == b + 1 and seen[-1] and (moved.shared["prompt_ids"][prompt][seen] == b + 1).all()
            assert (moved.shared["grids"][prompt] == (b + 1 if b in SHARES[1] else 0)).all()
        together.append(numbers)
        for cut in cuts:  # every part's units, by their new rows
            for part, (rows, _) in zip(cut, minibatches(plan.share, cut, numbers.device), strict=True):
                assert set(numbers[rows].tolist()) == set(part.tolist()) & set(numbers.tolist())
    assert torch.equal(torch.cat(together).sort().values, torch.arange(len(LENGTHS) * GROUP_SIZE))


def test_tokens_are_balanced(monkeypatch):
    def work(one, share):
        plan = Exchange.balancing(one, share, [partition(share, None, 0, 0, 0)], shares_prompts=True)
        return group_tokens(one, GROUP_SIZE, True), group_tokens(plan.moved(one), GROUP_SIZE, True)

    _, found = on_every_process(work, monkeypatch)
    before, after = ([sum(tokens[when]) for tokens in found] for when in (0, 1))
    # Prompts of b + 1 tokens, answers of `LENGTHS` and one more.
    assert before == [sum(2 * LENGTHS[b] + 1 + b + 1 for b in groups) for groups in SHARES]
    assert sum(before) == sum(after) and max(before) > 100 and max(after) - min(after) <= 25


@pytest.mark.parametrize("shares", [SHARES, [range(2), range(2, 2), range(2, 2)]], ids=["groups", "fewer groups"])
def test_values_go_back(shares, monkeypatch):
    def work(one, share):
        plan = Exchange.balancing(one, share, [partition(share, 4, 0, 0, 0)], shares_prompts=False)
        return plan.returned({"weights": plan.moved(one).targets["weights"]}, one.mask.shape[1])["weights"]

    given, found = on_every_process(work, monkeypatch, shares)
    assert all(torch.equal(values, one.targets["weights"]) for one, values in zip(given, found, strict=True))


def test_prompts_count_once_where_they_are_shared():
    one = examples(range(1, 3), LENGTHS, images=False)
    assert group_tokens(one, GROUP_SIZE, True) == [40 + 41 + 2, 1 + 2 + 3]
    assert group_tokens(one, GROUP_SIZE, False) == [40 + 41 + 2 * 2, 1 + 2 + 2 * 3]
    one.shared.clear()
    assert group_tokens(one, GROUP_SIZE, True) == [81, 3]
