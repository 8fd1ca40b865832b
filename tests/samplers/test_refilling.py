"""Waiting prompts take the place of ended answers, and no answer changes."""

import pytest
import torch

from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.continuation import SharedContinuation
from lightning_cgrpo.policies.shared_prefix.decoding import Decoding
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import LOOK_EVERY, TransformersEngine
from tests.samplers.rolled import TEXTS, groups, noise_for, rolled, same
from tests.samplers.vllm_client import make_policy


@pytest.fixture(scope="module")
def policy(two_layers):
    return make_policy(two_layers, dtype="float64")


class Steps:
    """Notes running answers and their prompts at each step; at each join, new prompts and the longest prompt."""

    def __init__(self, monkeypatch):
        self.answers = []
        self.prompts = []
        self.joined = []
        self.columns = []
        monkeypatch.setattr(SharedContinuation, "next", self.watched(SharedContinuation.next, self.stepped))
        monkeypatch.setattr(Decoding, "join", self.watched(Decoding.join, self.noted))

    def watched(self, method, note):
        def noting(instance, *arguments):
            result = method(instance, *arguments)
            note(instance, *arguments)
            return result

        return noting

    def stepped(self, continuation, kept, tokens):
        self.answers.append(len(tokens))
        slots = continuation.decoding.slots
        self.prompts.append(len((slots.cell // slots.grid[1]).unique()))

    def noted(self, decoding, other):
        self.joined.append(other.slots.grid[0])
        self.columns.append(decoding._layers[0].prompt_value.shape[1])


def limited(policy, limits, group_size, sampling):
    """Answers to a prompt for each limit."""
    prompts = groups([f"Tom {number}" for number in range(len(limits))])
    inputs = policy.read_prompts(prompts.columns["prompt"], prompts.index)
    draws = noise_for(prompts)(group_size, sampling.max_new_tokens)
    return TransformersEngine().generate(policy, inputs, group_size, sampling, draws, limits)


@pytest.mark.parametrize("look_every", [1, 3])
@pytest.mark.parametrize("stops", [30, 60])
@pytest.mark.parametrize("options", [{}, {"min_new_tokens": 5}, {"repetition_penalty": 2.0}, {"top_p": 0.95}])
def test_waiting_prompts_take_the_place_of_ended_answers(policy, monkeypatch, options, stops, look_every):
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    monkeypatch.setattr(policy, "stop_tokens", policy.stop_tokens[:stops])
    prompts = groups([" ".join(TEXTS[: number % 3 + 1]) + f" {number}" for number in range(40)])
    expected = rolled(policy, 60, 4, prompts, **options)
    steps = Steps(monkeypatch)
    same(rolled(policy, 60, 4, prompts, batch_size=34, **options), expected)
    if expected.sampling_log_probs is not None:
        assert not expected.sampling_log_probs[~expected.mask].any()
    assert sum(steps.joined) > 24 and min(steps.joined[:-1]) == 2  # a quarter of eight prompts
    assert max(steps.answers) <= 32  # whole groups
    assert 8 < max(steps.prompts) <= 16


def test_prompts_that_join_have_limits_and_room_of_their_own(policy, monkeypatch):
    limits = torch.tensor([5, 5, 9, 2, 50, 1, 40, 3, 60, 8, 1, 30])
    expected = limited(policy, limits, 2, Sampling(60))
    steps = Steps(monkeypatch)
    same(limited(policy, limits, 2, Sampling(60, batch_size=6)), expected)
    assert (expected.lengths == limits[:, None]).any(-1).sum() > 6 and len(steps.joined) > 2


def test_all_older_answers_may_end_right_after_a_join(policy, monkeypatch):
    monkeypatch.setattr(policy, "stop_tokens", policy.stop_tokens[:1])
    limits = torch.tensor([2, 1, 1, 1, 1, 2, 2, 2, 2])
    expected = limited(policy, limits, 1, Sampling(2))
    steps = Steps(monkeypatch)
    same(limited(policy, limits, 1, Sampling(2, batch_size=5)), expected)
    assert steps.joined == [4] and expected.lengths.flatten().tolist() == limits.tolist()


def test_a_long_prompt_lengthens_others_no_longer_than_it_is_answered(policy, monkeypatch):
    inputs = policy.padded([[5] * 50, [6] * 5, *([7] * (3 + number % 4) for number in range(10))])
    limits = torch.tensor([2, 5, 1, 8, 2, 6, 1, 4, 3, 2, 7, 1])
    draws = torch.full((12, 2, 8), 0.5, dtype=torch.float64)
    expected = TransformersEngine().generate(policy, inputs, 2, Sampling(8), draws, limits)
    steps = Steps(monkeypatch)
    same(TransformersEngine().generate(policy, inputs, 2, Sampling(8, batch_size=4), draws, limits), expected)
    assert len(steps.columns) > 3 and max(steps.columns[1:]) == 6


def test_a_batch_smaller_than_a_group_answers_one_prompt_at_a_time(policy, monkeypatch):
    expected, steps = rolled(policy, 10, 4), Steps(monkeypatch)
    same(rolled(policy, 10, 4, batch_size=3), expected)
    assert set(steps.prompts) == {1} and max(steps.answers) <= 4


def test_prompts_of_other_models_wait_for_the_longest_answer(policy, monkeypatch):
    prompts = groups([f"Tom {number}" for number in range(9)])
    expected = rolled(policy, 60, 4, prompts)
    steps = Steps(monkeypatch)
    monkeypatch.setattr(policy, "computation", PaddedRows())
    same(rolled(policy, 60, 4, prompts, batch_size=8), expected)
    assert not steps.joined


def test_cache_rows_without_an_answer_may_hold_nan(policy, monkeypatch):
    """With deterministic algorithms, PyTorch fills new tensors with NaN."""
    expected = rolled(policy, 30, 6)
    torch.use_deterministic_algorithms(True, warn_only=True)
    steps = Steps(monkeypatch)
    try:
        assert torch.empty(1).isnan()
        same(rolled(policy, 30, 6), expected)
        same(rolled(policy, 30, 6, batch_size=12), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(expected.lengths.unique()) > 3 and steps.joined
