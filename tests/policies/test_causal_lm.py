"""The policy over language models: equal to transformers answer by answer, and honest about what it cannot do."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_cgrpo import FunctionTask, GenerationSampler, Objective
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.continuation import PromptBatch
from lightning_cgrpo.policies.shared_prefix import log_probs
from lightning_cgrpo.policies.token_log_probs import token_log_probs
from lightning_cgrpo.samplers import transformers_engine
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from tests.grids import grid_module
from tests.policies import causal_families
from tests.policies.causal_families import SIZES
from tests.policies.small_policies import TEMPERATURE, exact_norms, loaded, perturb, ragged, with_lora

OF_FAMILY = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"]},
    **{name: {"sliding_window": None} for name in ("mistral", "phi3")},
}


def build(family):
    model = causal_families.build(family, **OF_FAMILY.get(family, {})).double()
    exact_norms(model)
    return model


def naive(model, rollouts, temperature, reference):
    """Log-probabilities, entropies and KL, one unpadded sequence at a time, by transformers and autograd alone."""
    log_probs = torch.zeros(rollouts.mask.shape, dtype=torch.float64)
    entropy, kl = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
    for b in range(rollouts.mask.shape[0]):
        prompt = rollouts.inputs["prompt_ids"][b][rollouts.inputs["prompt_mask"][b]]
        for g in range(rollouts.mask.shape[1]):
            answer = rollouts.actions[b, g][rollouts.mask[b, g]]
            ids = torch.cat([prompt, answer])[None]
            logits = (network(ids).logits[0, len(prompt) - 1 : -1] / temperature for network in (model, reference))
            full, other = (part.log_softmax(-1) for part in logits)
            log_probs[b, g, : len(answer)] = full.gather(-1, answer[:, None])[:, 0]
            entropy[b, g, : len(answer)] = -(full.exp() * full).sum(-1)
            kl[b, g, : len(answer)] = (full.exp() * (full - other)).sum(-1)
    return log_probs, entropy, kl


def gradients(model, loss):
    return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


SHARED = ["qwen2", "qwen3", "llama", "mistral", "gemma", "phi3", "olmo2", "granite", "smollm3", "glm", "gpt2", "opt"]


@pytest.mark.parametrize("family", [*SHARED, "gemma3_text", "cohere"])
def test_equals_transformers_without_padding(family, tokenizer):
    model = build(family)
    with warnings.catch_warnings(record=True):
        policy = CausalLMPolicy.from_model(model, tokenizer, temperature=TEMPERATURE)
    assert policy.shares_prompts == (family in SHARED)
    policy.train()
    rollouts = ragged()
    examples = policy.examples(rollouts)
    reference = policy.reference()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
        beside = reference(examples)
    output = policy(examples, beside)
    expected = naive(model, rollouts, TEMPERATURE, reference.model)
    coefficients = torch.randn(3, *rollouts.mask.shape, dtype=torch.float64) * rollouts.mask

    values = (output.log_probs, output.entropy, output.kl)
    for ours, theirs in zip(values, expected, strict=True):
        assert ours.shape == examples.actions.shape
        assert ours.isfinite().all()
        torch.testing.assert_close(ours * examples.mask, theirs.flatten(0, 1), rtol=0, atol=1e-10)
    ours = (torch.stack(values) * coefficients.flatten(1, 2)).sum()
    theirs = (torch.stack(expected) * coefficients).sum()
    for one, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        # Some norms and rotations are computed in float32, whatever the dtype.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 if family in ("gemma", "gemma3_text") else 1e-8)


@pytest.mark.parametrize("family", [*SHARED[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in SHARED[2:])])
def test_answers_by_pages_are_those_of_one_copy_of_the_prompt(family, tokenizer, monkeypatch):
    """Token for token in float64, with waiting prompts and limits."""
    policy = CausalLMPolicy.from_model(build(family), tokenizer, temperature=TEMPERATURE)
    policy.stop_tokens = tuple(range(2, 42))
    inputs = policy.padded([[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [17], [18] * 6, [19, 20]])
    draws, limits = torch.rand(5, 3, 20, dtype=torch.float64), torch.tensor([20, 4, 20, 13, 20])
    found = []
    for kinds in (set(), {"cpu"}):
        monkeypatch.setattr(transformers_engine, "IN_PAGES", kinds)
        for size in (None, 6):
            found.append(TransformersEngine().generate(policy, inputs, 3, Sampling(20, batch_size=size), draws, limits))
    for other in found[1:]:
        assert torch.equal(other.actions, found[0].actions) and torch.equal(other.mask, found[0].mask)
    assert len(found[0].lengths.unique()) > 4


class Widest(TorchDispatchMode):
    """The most rows of logits at a time."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and made.shape[-1] == SIZES["vocab_size"]:
            self.rows = max(self.rows, len(made))
        return made


@pytest.mark.parametrize(("family", "rows"), [("gemma3_text", 5), ("cohere", 9 * 6)])
def test_padded_rows_need_a_chunk_of_logits_at_a_time(family, rows, tokenizer, monkeypatch):
    """Cohere scales its logits, so transformers computes all of them at once."""
    monkeypatch.setattr(log_probs, "chunk_rows", lambda vocabulary, device: 5)
    with pytest.warns(match="its own copy of the prompt"):
        policy = CausalLMPolicy.from_model(build(family), tokenizer)
    examples = policy.examples(ragged())
    with Widest() as logits:
        policy(examples)
    assert logits.rows == rows


def test_a_scale_that_nobody_knows_keeps_the_logits_of_transformers(tokenizer):
    model = build("gemma3_text")
    model.lm_head.register_forward_hook(lambda module, given, logits: logits / 2)
    with pytest.warns(match="its own copy of the prompt"):
        policy = CausalLMPolicy.from_model(model, tokenizer, temperature=TEMPERATURE)
    rollouts = ragged()
    examples = policy.examples(rollouts)
    expected, *_ = naive(model, rollouts, TEMPERATURE, model)
    found = policy(examples).log_probs * examples.mask
    torch.testing.assert_close(found, expected.flatten(0, 1), rtol=0, atol=1e-10)


def test_gradient_of_token_log_probs():
    torch.manual_seed(0)
    logits = torch.randn(3, 2, 7, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(7, (3, 2))
    assert torch.autograd.gradcheck(lambda x: token_log_probs(x, actions, 0.7), logits)
    for one in range(2):  # either output alone
        assert torch.autograd.gradcheck(lambda x, one=one: token_log_probs(x, actions, 1.3)[one], logits)


def test_half_precision_logits_are_reduced_in_float32():
    logits = torch.randn(4, 50).bfloat16().requires_grad_()
    actions = torch.arange(4)
    log_probs, entropy = token_log_probs(logits, actions)
    expected = logits.detach().float().log_softmax(-1)
    torch.testing.assert_close(log_probs, expected.gather(-1, actions[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1))
    (log_probs.sum() + entropy.sum()).backward()
    assert logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["gpt2", "opt"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_dropout_is_inactive_and_checkpointing_changes_nothing(family, gradient_checkpointing, tokenizer):
    model = build(family)  # with dropout of 0.1
    plain = CausalLMPolicy.from_model(copy.deepcopy(model), tokenizer)
    policy = CausalLMPolicy.from_model(model, tokenizer, gradient_checkpointing=gradient_checkpointing)
    policy.train()
    examples = policy.examples(ragged())
    reference = policy.reference()
    output = policy(examples).log_probs
    torch.testing.assert_close(output, plain(examples).log_probs, rtol=0, atol=0)
    with torch.no_grad():  # between forward and backward, as in a training step
        torch.testing.assert_close(reference(examples).log_probs, output, rtol=0, atol=1e-12)
    pair = gradients(policy.model, output.sum()), gradients(plain.model, plain(examples).log_probs.sum())
    torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12)


def test_checkpointing_recomputes(tokenizer):
    policy = CausalLMPolicy.from_model(build("qwen2"), tokenizer, gradient_checkpointing=True)
    policy.train()
    calls = []
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    policy(policy.examples(ragged())).log_probs.sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_reference_of_adapters_is_the_base_model(directory, gradient_checkpointing):
    policy = with_lora(directory, gradient_checkpointing=gradient_checkpointing)
    adapters = policy.model.peft_config["default"]
    assert (adapters.r, adapters.lora_alpha) == (4, 16)
    base = loaded(directory, dtype="float64")
    examples = policy.examples(ragged())
    expected = base(examples).log_probs
    torch.testing.assert_close(policy(examples).log_probs, expected, rtol=0, atol=1e-12)  # B = 0
    perturb(policy)
    output = policy(examples).log_probs
    assert (output - expected).abs().max() > 1e-3
    reference = policy.reference()(examples)
    torch.testing.assert_close(reference.log_probs, expected.detach(), rtol=0, atol=1e-12)
    kl = policy(examples, reference).kl
    assert kl[examples.mask].gt(0).all() and kl[~examples.mask].eq(0).all()
    torch.testing.assert_close(kl, policy(examples, base(examples)).kl, rtol=0, atol=1e-12)
    # The adapters are on again, and trained alone.
    torch.testing.assert_close(policy(examples).log_probs, output, rtol=0, atol=0)
    trained = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in trained.values())


@pytest.mark.parametrize("adapters", [False, True])
def test_checkpoints_leave_the_base_of_adapters_out(directory, adapters):
    policy = with_lora(directory) if adapters else loaded(directory)
    parts = {"sampler": GenerationSampler(8), "task": FunctionTask({"goal": len}), "objective": Objective("goal")}
    module = grid_module(policy=policy, **parts)
    module._trainer = SimpleNamespace(callback_metrics={})
    state = module.state_dict()
    checkpoint = {"state_dict": dict(state)}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint.get("base_weights", {}).keys() == ({"policy"} if adapters else set())
    left = {name for name in state if name.startswith("policy.") and ".lora_" not in name} if adapters else set()
    assert checkpoint["state_dict"].keys() == state.keys() - left and bool(left) is adapters


def test_reference_of_adapters_registers_nothing(directory):
    holder = torch.nn.Module()
    holder.policy = with_lora(directory)
    names = list(holder.state_dict())
    holder.reference = holder.policy.reference()
    assert list(holder.state_dict()) == names


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0,
    "short_factor": [1.0, 1.0, 1.02, 1.03], "long_factor": [1.1, 2.5, 20.0, 60.0],
    "original_max_position_embeddings": 10,
}  # fmt: skip
LONGROPES = {
    "phi3": {"rope_parameters": LONGROPE, "sliding_window": None, "original_max_position_embeddings": 10},
    "padded phi3": {"rope_parameters": LONGROPE, "sliding_window": 5, "original_max_position_embeddings": 10},
    "doge": {"keep_window_size": 10},
    "phimoe": {"rope_parameters": {**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.3}},
}


@pytest.mark.parametrize("kind", LONGROPES)
def test_no_text_depends_on_the_length_of_another(kind, tokenizer):
    """In a batch with longer texts, and in generation; a run stays where a text's own length changes nothing."""
    # PhiMoE's experts have no float64.
    dtype, atol = (torch.float32, 1e-4) if kind == "phimoe" else (torch.float64, 1e-9)
    model = causal_families.build(kind.split()[-1], **LONGROPES[kind]).to(dtype)
    exact = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = CausalLMPolicy.from_model(model, tokenizer)
    assert policy.shares_prompts == (kind != "padded phi3")
    assert policy.context_length == 10
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(10, 200, (length,), generator=draw) for length in (3, 8)]
    inputs = policy.padded([prompt.tolist() for prompt in prompts])
    actions = torch.randint(10, 200, (2, 1, 6), generator=draw)
    mask = torch.ones_like(actions, dtype=torch.bool)
    mask[0, 0, 4:] = False
    with torch.no_grad():
        found = policy(policy.examples(Rollouts(actions, mask, inputs))).log_probs
        for row, prompt in enumerate(prompts):
            answer = actions[row, 0][mask[row, 0]]
            text = torch.cat([prompt, answer])[:-1]  # the last token predicts nothing
            logits = exact(text[None], use_cache=False).logits[0, len(prompt) - 1 :]
            expected = logits.log_softmax(-1).gather(-1, answer[:, None])[:, 0]
            torch.testing.assert_close(found[row, : len(answer)], expected, rtol=0, atol=atol)
        asked = PromptBatch(inputs, torch.tensor([3, 8]), torch.tensor([6, 6]), 1)
        continuation = policy.continuation(asked)
        logits = continuation.read()
        for step in range(6):
            for row, prompt in enumerate(prompts):
                text = torch.cat([prompt, actions[row, 0, :step]])[None]
                expected = exact(text, use_cache=False).logits[0, -1]
                torch.testing.assert_close(logits[row], expected, rtol=0, atol=atol)
            logits = continuation.next(None, actions[:, 0, step])


def test_rotations_that_grow_with_a_text_are_shared_up_to_the_context(tokenizer):
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    policy = CausalLMPolicy.from_model(causal_families.build("llama", rope_parameters=rope), tokenizer)
    assert policy.shares_prompts
    assert policy.context_length == SIZES["max_position_embeddings"]


@pytest.mark.parametrize("shared", [True, False])
def test_empty_answers_give_finite_values(policy, shared, monkeypatch):
    monkeypatch.setattr(policy, "computation", PackedPrompts() if shared else PaddedRows())
    rollouts = ragged()
    rollouts.mask[0] = False
    examples = policy.examples(rollouts)
    assert isinstance(examples, Examples)
    assert policy(examples).log_probs.isfinite().all()
    rollouts.mask[:] = False
    assert policy(policy.examples(rollouts)).log_probs.isfinite().all()
