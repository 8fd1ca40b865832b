"""Generation: exact draws from the policy's distribution, whatever else is in the batch."""

import pytest
import torch
import transformers

from lightning_cgrpo.core.rollout import prompt_tokens
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.shared_prefix.decoding import Decoding
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.generation import ENDLESS, GenerationSampler
from lightning_cgrpo.samplers.token_choice import TokenChoice, sample
from lightning_cgrpo.samplers.transformers_engine import LOOK_EVERY, TransformersEngine
from tests.samplers.rolled import TEXTS, answers, groups, noise_for, rolled, same
from tests.samplers.vllm_client import make_policy


@pytest.fixture(scope="module")
def policy(two_layers):
    return make_policy(two_layers, dtype="float64")


def test_shapes_masks_and_stops(policy):
    rollouts = rolled(policy, 12, 16)
    assert rollouts.actions.shape == rollouts.mask.shape == (3, 16, 12)
    assert rollouts.log_probs is None
    assert rollouts.inputs["prompt_ids"].shape == rollouts.inputs["prompt_mask"].shape
    is_stop = torch.isin(rollouts.actions, torch.tensor(policy.stop_tokens)) & rollouts.mask
    ends = rollouts.lengths - 1
    # Masks are prefixes; the only stop token of an answer is its last one; without one it is truncated.
    assert torch.equal(rollouts.mask, torch.arange(12) < rollouts.lengths[..., None])
    assert (rollouts.lengths >= 1).all()
    assert (is_stop.sum(-1) <= 1).all()
    at_end = is_stop.gather(-1, ends[..., None]).squeeze(-1)
    assert torch.equal(at_end, is_stop.any(-1))
    assert torch.equal(rollouts.info["truncated"], ~at_end)
    assert (rollouts.lengths[rollouts.info["truncated"]] == 12).all()
    # The test means something: some answers stop at once, by several tokens, and some never.
    assert (rollouts.lengths == 1).any()
    assert rollouts.info["truncated"].any()
    assert len(rollouts.actions[is_stop].unique()) > 1
    for b in range(3):
        texts = [policy.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in answers(rollouts, b)]
        assert rollouts.info["text"][b] == texts


def first_logits(policy):
    """After the first prompt."""
    return policy.logits(*policy.read_prompts(TEXTS[:1]).values(), keep=1)[0, 0]


def grid(points):
    """Draws that are spread evenly, for as many answers to a prompt."""
    return lambda *shape: ((torch.arange(points, dtype=torch.float64) + 0.5) / points).view(1, points, 1)


def test_a_stop_token_in_the_last_place_is_no_truncation(policy):
    prompts, probabilities = groups(TEXTS[:1]), first_logits(policy).div(policy.temperature).softmax(-1)
    stop = policy.stop_tokens[3]
    draw = probabilities[:stop].sum() + probabilities[stop] / 2
    rollouts = GenerationSampler(1).rollout(policy, prompts, 2, lambda *shape: draw.expand(1, *shape))
    assert rollouts.actions.unique().tolist() == [stop]
    assert not rollouts.info["truncated"].any()


@pytest.mark.parametrize("batch_size", [None, 1, 8])
def test_independent_of_the_batch(policy, batch_size):
    options = {"top_p": 0.95, "batch_size": batch_size}
    together = rolled(policy, 10, 4, top_p=0.95)
    same(rolled(policy, 10, 4, **options), together)
    order = [2, 0]
    reordered = rolled(policy, 10, 4, groups([TEXTS[i] for i in order], order), **options)
    for row, b in enumerate(order):
        single = rolled(policy, 10, 4, groups([TEXTS[b]], [b]), **options)
        assert answers(single, 0) == answers(together, b) == answers(reordered, row)
        assert single.info["text"][0] == together.info["text"][b]


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("look_every", [2, 8, 100])
def test_rare_looks_at_which_answers_ended_change_no_answer(policy, monkeypatch, look_every, shares):
    monkeypatch.setattr(policy, "computation", PackedPrompts() if shares else PaddedRows())
    expected = rolled(policy, 30, 6)
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    same(rolled(policy, 30, 6), expected)
    assert len(expected.lengths.unique()) > 3


@pytest.mark.parametrize(("group_size", "stops"), [(1, 60), (2, 60), (24, 60), (24, 12)])
def test_sharing_prompts_changes_no_answer(policy, monkeypatch, group_size, stops):
    prompts_left = []
    keep = Decoding.keep

    def watched(kept, rows):
        keep(kept, rows)
        prompts_left.append(kept.slots.grid[0])

    monkeypatch.setattr(Decoding, "keep", watched)
    monkeypatch.setattr(policy, "stop_tokens", policy.stop_tokens[:stops])
    shared = rolled(policy, 70, group_size)
    monkeypatch.setattr(policy, "computation", PaddedRows())
    same(shared, rolled(policy, 70, group_size))
    if group_size == 2:
        assert {1, 3} <= set(prompts_left)
    if stops == 12:  # some answers fill the cache
        assert int(shared.lengths.max()) == 70


def test_a_minimum_length_holds_stop_tokens_back(policy):
    for least in (0, 1, 2, 5):
        rollouts = rolled(policy, 8, 32, min_new_tokens=least)
        assert int(rollouts.lengths.min()) == max(least, 1)
        before = rollouts.actions[..., : max(least - 1, 0)]
        assert not torch.isin(before, torch.tensor(policy.stop_tokens)).any()


@pytest.mark.parametrize(
    ("options", "kept"), [({"top_k": 3}, 3), ({"top_k": 1}, 1), ({"min_p": 1.0}, 1), ({"top_p": 1e-6}, 1)]
)
def test_filters_leave_the_likeliest(policy, options, kept):
    rollouts = GenerationSampler(1, **options).rollout(policy, groups(TEXTS[:1]), 500, grid(500))
    logits = first_logits(policy)
    logits[policy.pad_token] = -torch.inf
    order = logits.argsort(descending=True)
    probabilities = (logits / policy.temperature).softmax(-1)
    inside = order[:kept]
    counts = torch.bincount(rollouts.actions.flatten(), minlength=len(logits))
    expected = 500 * probabilities[inside] / probabilities[inside].sum()
    assert ((counts[inside] - expected).abs() <= 1).all()
    assert int(counts.sum()) == int(counts[inside].sum())


def test_large_vocabularies_are_sampled_exactly():
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(40, 5000, generator=draw) ** 8
    weights[:, 1000:3000] = 0
    draws = torch.rand(40, generator=draw, dtype=torch.float64)
    draws[:2] = torch.tensor([0.0, 1 - 2.0**-53])
    chosen = sample(weights, draws)
    cumulative = weights.double().cumsum(-1)
    before = torch.where(chosen > 0, cumulative.gather(-1, (chosen - 1).clamp(min=0)[:, None])[:, 0], 0)
    target = draws * cumulative[:, -1]
    share = weights.gather(-1, chosen[:, None])[:, 0]
    assert (share > 0).all()
    assert (before <= target + 1e-9).all()
    assert (target <= before + share + 1e-9).all()


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_each_token_is_the_inverse_cdf_under_the_training_forward(two_layers, gradient_checkpointing):
    """Decoding with the cache agrees with the full forward: redraw every token from the latter's distribution."""
    trained = make_policy(two_layers, dtype="float64", gradient_checkpointing=gradient_checkpointing).train()
    rollouts, draws = rolled(trained, 8, 4), noise_for(groups())(4, 8)
    examples = trained.examples(rollouts)
    ids = torch.cat([examples.shared["prompt_ids"][examples.group], examples.actions], 1)
    mask = torch.cat([examples.shared["prompt_mask"][examples.group], examples.mask], 1)
    probabilities = (trained.logits(ids[:, :-1], mask[:, :-1], keep=8) / 0.8).softmax(-1)
    expected = sample(probabilities.flatten(0, 1), draws.flatten()).view(12, 8)
    assert torch.equal(expected[examples.mask], examples.actions[examples.mask])
    taken = probabilities.gather(-1, examples.actions[..., None]).squeeze(-1).log()
    ours = trained(examples).log_probs
    torch.testing.assert_close(ours[examples.mask], taken[examples.mask], rtol=0, atol=1e-10)


def test_sample_at_the_borders():
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.0]], dtype=torch.float64)
    largest = 1 - 2.0**-53
    draws = torch.tensor([0.0, 0.6, 2 / 3 + 1e-12, largest], dtype=torch.float64)
    assert sample(weights.expand(4, -1), draws).tolist() == [1, 1, 3, 3]
    for total in torch.rand(200, dtype=torch.float64).tolist():  # the last draw never falls on the empty tail
        row = torch.tensor([[total, total / 3, 0.0]], dtype=torch.float64)
        assert sample(row, torch.tensor([largest], dtype=torch.float64)).item() == 1


def test_padding_is_not_sampled_unless_it_stops(policy, monkeypatch):
    monkeypatch.setattr(policy, "pad_token", int(first_logits(policy).argmax()))
    for stops, sampled in (((2,), False), ((2, policy.pad_token), True)):
        monkeypatch.setattr(policy, "stop_tokens", stops)
        rollouts = GenerationSampler(1).rollout(policy, groups(TEXTS[:1]), 5000, grid(5000))
        assert bool((rollouts.actions == policy.pad_token).any()) == sampled


def test_chat_prompts_and_no_prompts(policy):
    assert rolled(policy, 3, 2, groups([[{"role": "user", "content": "Tom"}]])).actions.shape == (1, 2, 3)
    rollouts = rolled(policy, 3, 2, groups([]))
    assert rollouts.actions.shape == (0, 2, 3)
    assert rollouts.info["text"] == []


@pytest.mark.parametrize("look_every", [1, 8])
def test_diverged_weights_are_an_error(directory, monkeypatch, look_every):
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    policy = make_policy(directory)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="Expected finite logits"):
        rolled(policy, 9, 2)


@pytest.mark.parametrize("shares", [True, False])
def test_a_repetition_penalty_is_transformers_and_reports_its_log_probs(policy, monkeypatch, shares):
    """Each token is the inverse cumulative distribution of the processed logits, as is the reported probability."""
    monkeypatch.setattr(policy, "computation", PackedPrompts() if shares else PaddedRows())
    penalty = 1.7
    rollouts, draws = rolled(policy, 8, 3, repetition_penalty=penalty), noise_for(groups())(3, 8)
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    changed = 0
    for b, prompt in enumerate(prompt_tokens(rollouts.inputs)):
        for g, answer in enumerate(answers(rollouts, b)):
            ids = torch.tensor([[*prompt, *answer]])
            logits = policy.logits(ids, torch.ones_like(ids), keep=len(answer) + 1)[0].detach()
            for step, token in enumerate(answer):
                seen = ids[:, : len(prompt) + step]
                scaled = processor(seen, logits[None, step].clone()) / policy.temperature
                if policy.pad_token not in policy.stop_tokens:
                    scaled[:, policy.pad_token] = -torch.inf
                assert sample(scaled.softmax(-1), draws[b, g, None, step]).item() == token
                expected = scaled.log_softmax(-1)[0, token].float()
                torch.testing.assert_close(rollouts.sampling_log_probs[b, g, step], expected)
                changed += bool((expected - (logits[step] / policy.temperature).log_softmax(-1)[token]).abs() > 0.01)
    assert changed > 20
    assert rolled(policy, 8, 3).sampling_log_probs is None


def test_answers_that_never_end_are_named_once(policy, monkeypatch):
    """The model's end token is another one than the tokenizer's and the generation configuration's."""
    prompts = groups()
    sampler = GenerationSampler(max_new_tokens=2)
    monkeypatch.setattr(policy, "stop_tokens", (policy.pad_token,))  # never sampled, but for stop tokens
    monkeypatch.setattr(TokenChoice, "__call__", lambda self, logits, *_: logits.argmax(-1) * 0 + 5)
    with pytest.warns(match=r"the ends <\|endoftext\|>\. Try a larger max_new_tokens") as messages:
        for _ in range(ENDLESS + 1):
            sampler.rollout(policy, prompts, 2, noise_for(prompts))
    assert len([message for message in messages if "the ends" in str(message.message)]) == 1


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("look_every", [1, 8])
def test_limits_cut_answers_and_change_nothing_before(policy, monkeypatch, shares, look_every):
    monkeypatch.setattr(policy, "computation", PackedPrompts() if shares else PaddedRows())
    monkeypatch.setitem(LOOK_EVERY, "cpu", look_every)
    inputs, draws = policy.read_prompts(TEXTS), noise_for(groups())(4, 20)
    whole = TransformersEngine().generate(policy, inputs, 4, Sampling(20), draws)
    limits = torch.tensor([3, 20, 11])
    cut = TransformersEngine().generate(policy, inputs, 4, Sampling(20), draws, limits)
    inside = torch.arange(20) < limits[:, None, None]
    assert torch.equal(cut.mask, whole.mask & inside)
    assert torch.equal(cut.actions[cut.mask], whole.actions[cut.mask])
    assert torch.equal(cut.info["truncated"], whole.info["truncated"] | (whole.lengths > limits[:, None]))
    assert (whole.lengths > limits[:, None]).any(), "or this would say little"


def test_under_autocast_a_rollout_reads_a_copy_in_bfloat16(two_layers):
    """The weights themselves stay, and so do the inputs of training."""
    policy = make_policy(two_layers)
    weights = dict(policy.named_parameters())
    engine = TransformersEngine()
    tied = policy.model.get_input_embeddings().weight is policy.output_weight
    with torch.autocast("cpu", torch.bfloat16), engine.session(policy):
        inside = list(policy.parameters())
        assert {weight.dtype for weight in inside} == {torch.bfloat16}
        assert (policy.model.get_input_embeddings().weight is policy.output_weight) == tied
        assert not torch.is_autocast_enabled("cpu")
    assert all(weights[name] is weight for name, weight in policy.named_parameters())
    with engine.session(policy):
        assert all(weights[name] is weight for name, weight in policy.named_parameters())
