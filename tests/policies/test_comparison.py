"""Loading chooses a computation that agrees with transformers, for every kind of model, or refuses the model."""

import re
import warnings
from contextlib import nullcontext

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.comparison import Sample
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from tests.policies.causal_families import build, small
from tests.policies.small_policies import adapted, loaded, ragged


@pytest.fixture
def fast_products():
    """As the command line sets products on a GPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_the_comparison_has_full_precision(directory, monkeypatch, fast_products):
    during, compare = [], Sample.difference

    def spy(*args, **options):
        during.append(torch.get_float32_matmul_precision())
        return compare(*args, **options)

    monkeypatch.setattr(Sample, "difference", spy)
    assert loaded(directory).shares_prompts
    assert during == ["highest"]
    assert torch.get_float32_matmul_precision() == "high"


def test_the_comparison_keeps_the_advice_of_torch_2_9_from_the_user(directory, monkeypatch, recwarn):
    read = torch.get_float32_matmul_precision

    def advise():
        warnings.warn("Please use the new API settings to control TF32 behavior, such as ...", stacklevel=2)
        return read()

    monkeypatch.setattr(torch, "get_float32_matmul_precision", advise)
    loaded(directory)
    assert [warning for warning in recwarn if "new API" in str(warning.message)] == []


def test_a_failing_pass_is_replaced_and_named(directory, monkeypatch, fast_products):
    def fail(*_):
        raise TypeError("a fault")

    monkeypatch.setattr(PackedPrompts, "log_probs", fail)
    with pytest.warns(match=r"fails when prompts are shared \(a fault\)"):
        policy = loaded(directory)
    assert not policy.shares_prompts
    assert policy.network.config._attn_implementation == "sdpa"
    monkeypatch.setattr(torch.nn.Embedding, "forward", fail)
    for _ in range(2):  # the second load is no success either
        with pytest.raises(UserError, match="a fault"):
            CausalLMPolicy.from_model(policy.model, policy.tokenizer)
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (None, None),
        (lambda attended: attended * 100, "in bfloat16 would differ by .* when prompts are shared"),
        (lambda attended: attended * torch.nan, "in bfloat16 would differ by nan when prompts are shared"),
        (lambda attended: attended.missing, "fails in bfloat16 when prompts are shared"),
    ],
)
def test_a_faulty_kernel_for_bfloat16_is_found_at_loading(fault, told, directory, monkeypatch, recwarn):
    """A GPU's flash kernel runs in bfloat16 alone, and a comparison in float32 would not see it."""
    attend, in_half = PackedAttention.__call__, []

    def faulty(self, layer, query, *arguments):
        attended = attend(self, layer, query, *arguments)
        if query.dtype != torch.bfloat16:
            return attended
        in_half.append(layer)
        return attended if fault is None else fault(attended)

    monkeypatch.setattr(PackedAttention, "__call__", faulty)
    monkeypatch.setattr("lightning_cgrpo.policies.comparison.OTHER_IN_BFLOAT16", {"cpu"})
    policy = loaded(directory)
    warned = [str(warning.message) for warning in recwarn if "its own copy of the prompt" in str(warning.message)]
    assert in_half and policy.shares_prompts is (told is None)
    assert len(warned) == (told is not None) and all(re.search(told, text) for text in warned)


# A family, how it is computed, and the reason.
FAMILIES = [
    ("qwen2", "shared", ""),
    ("gemma2", "padded", "sliding_attention"),
    ("gpt_oss", "padded", "sliding_attention"),
    ("bloom", "padded", "cannot replace the attention"),
    ("deepseek_v3", "padded", "values of another width than keys"),
    ("diffllama", "padded", "generation would differ"),
    ("qwen3_5_text", "padded", "linear_attention"),
    ("mamba", "single", "in padded rows"),
    ("rwkv", "uncached", "takes no cache"),
]


@pytest.mark.parametrize(("family", "expected", "reason"), FAMILIES)
def test_trains_and_samples_as_transformers_computes(family, expected, reason, tokenizer, tmp_path):
    """From a saved directory, beside unpadded and uncached passes of transformers, on prompts of different lengths."""
    model = build(family)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with nullcontext() if expected == "shared" else pytest.warns(match=reason):
        policy = loaded(tmp_path, temperature=0.8)
    assert computation(policy) == expected
    check(policy, AutoModelForCausalLM.from_pretrained(tmp_path).eval())


def computation(policy):
    if policy.shares_prompts:
        return "shared"
    return "padded" if policy.pads else "single" if policy.caches else "uncached"


def check(policy, exact, atol=1e-4):
    """Greedy tokens, and log-probabilities of ragged answers."""
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]]
    inputs = policy.padded(prompts)
    greedy = Sampling(max_new_tokens=5, top_k=1)
    rollouts = TransformersEngine().generate(policy, inputs, 2, greedy, torch.full((2, 2, 5), 0.5))
    actions, mask = rollouts.actions, rollouts.mask
    actions[:, 1], mask[:, 1, 3:] = torch.arange(20, 30).view(2, 5), False
    mask[:, 1, :3] = True
    with torch.no_grad():
        output = policy(policy.examples(rollouts))
        for row, prompt in enumerate(prompts):
            for column in range(2):
                answer = actions[row, column][mask[row, column]]
                logits = exact(torch.tensor([[*prompt, *answer.tolist()]])).logits[0, len(prompt) - 1 : -1].float()
                if column == 0:
                    allowed = logits.index_fill(-1, torch.tensor([policy.pad_token]), -torch.inf)
                    assert allowed.argmax(-1).tolist() == answer.tolist()
                log_probs = (logits / policy.temperature).log_softmax(-1).gather(-1, answer[:, None])[:, 0]
                torch.testing.assert_close(
                    output.log_probs[2 * row + column][: len(answer)], log_probs, rtol=0, atol=atol
                )
    # Prompts that wait for a place have the same answers.
    inputs, draws = policy.padded([*prompts, [17, 18], [19] * 6]), torch.full((4, 1, 5), 0.5)
    limits = torch.tensor([1, 5, 3, 2])
    whole, waiting = (
        TransformersEngine().generate(policy, inputs, 1, Sampling(5, top_k=1, batch_size=size), draws, limits)
        for size in (None, 2)
    )
    assert torch.equal(waiting.actions, whole.actions) and torch.equal(waiting.mask, whole.mask)


def test_dropout_from_the_configuration_stays_off_under_checkpointing(tokenizer):
    """Falcon reads it from the configuration while its layer trains; no layer does."""
    model = transformers.FalconForCausalLM(small(transformers.FalconConfig, hidden_dropout=0.5, eos_token_id=2))
    policy = CausalLMPolicy.from_model(model, tokenizer, gradient_checkpointing=True)
    policy.train()
    examples = policy.examples(ragged())
    reference = policy.reference()(examples).log_probs
    torch.testing.assert_close(policy(examples).log_probs, reference, rtol=0, atol=1e-6)


def test_dropout_that_nobody_can_switch_off_is_refused(tokenizer):
    model = build("qwen2")
    model.lm_head.register_forward_pre_hook(lambda _, given: torch.nn.functional.dropout(given[0], 0.5))
    with pytest.raises(UserError, match="would differ"):
        CausalLMPolicy.from_model(model, tokenizer)


@pytest.mark.parametrize("invocation", [[5], [5, 6]])
def test_adapters_that_act_after_an_invocation_alone_are_refused(invocation, directory):
    with pytest.raises(UserError, match=r"Expected the adapters of .* to change log-probabilities"):
        CausalLMPolicy.from_model(*adapted(directory, alora_invocation_tokens=invocation))


def test_a_pass_without_the_adapters_is_found_while_they_are_0(directory, monkeypatch, recwarn):
    compute = PackedPrompts.log_probs

    def without(self, policy, *arguments):
        with policy.model.disable_adapter():
            return compute(self, policy, *arguments)

    model, tokenizer = adapted(directory)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    monkeypatch.setattr(PackedPrompts, "log_probs", without)
    policy = CausalLMPolicy.from_model(model, tokenizer)
    assert not policy.shares_prompts
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
