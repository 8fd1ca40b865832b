"""Choice of a computation at loading, by comparison with transformers' own unpadded, uncached pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.policies.computations.by_length import ByLength
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.computations.single import SingleRows, UncachedRows
from lightning_cgrpo.policies.continuation import PromptBatch
from lightning_cgrpo.policies.shared_prefix.support import (
    DYNAMIC_MASK_LIMIT,
    LONGROPE_LIMIT,
    length_limit,
    obstacle,
    output_obstacle,
    rotations,
    share_attention,
)

LENGTHS = (5, 7)
"""Tokens of the made-up prompts. Images are put before the third token of a row."""
ANSWERS = (4, 2, 3, 4)
"""Tokens of the made-up answers, two to each prompt."""
SHORT = 8
"""Tokens at which a model switches during the comparison, `_shortened_settings`: passes read 8, 6, 9 and 10 tokens."""
OTHER_IN_BFLOAT16 = {"cuda"}
"""Devices on which shared prompts have another kernel in bfloat16 than in float32."""
CLEAR = 0.25
"""A difference in nats that is an error, beyond four times the rounding of transformers' own pass in bfloat16."""
MOVED = 0.02
"""Standard deviation of the noise on adapters during the comparison, because B = 0 would hide that they don't act."""
WINDOWS = ("sliding_window", "attention_chunk_size", "index_topk")
"""Settings with which attention to long texts is another than to short texts."""
NOT_CAUSAL = (
    ("is_decoder", False),  # BERT and its kin
    ("causal", False),  # XLM
    ("attn_type", "bi"),  # XLNet
    ("use_bidirectional_attention", True),  # Gemma
    ("use_bidirectional_attention", "all"),
    ("default_language", None),  # XMOD asks for a language
    ("model_type", "prophetnet"),  # predicts several tokens at once
)
"""Settings with which a model of AutoModelForCausalLM does not predict the next token from earlier tokens alone."""


def check_causal(config: Any, name: str) -> None:
    """Refuse a model by its configuration, before weights are read; the `UserError` names the setting."""
    config = config.get_text_config()
    for setting, value in NOT_CAUSAL:
        # `is_decoder` decides where layers can read another text, too; GPT-NeoX is causal without it.
        required = "add_cross_attention" if setting == "is_decoder" else setting
        if hasattr(config, required) and getattr(config, setting, None) == value:
            raise UserError(
                "Expected a causal language model, whose probabilities depend on earlier tokens alone, but the "
                f"configuration of '{name}' ({config.model_type}) has {setting}: {value}, try another model."
            )


def choose(policy: Any, share_prompts: bool) -> str | None:
    """Set a policy to the fastest computation that agrees with transformers, in training and in generation.

    Args:
        policy: a `CausalLMPolicy`, which imports this file.

    Returns:
        A warning that names the loss of speed and its reason; None for the fastest computation asked for.

    Raises:
        UserError: no computation agrees, transformers' own pass fails, or adapters change no log-probability.
    """
    with _full_precision(), _moved_adapters(policy):
        with _short_windows(policy.network):
            _check_adapters(policy)
            reason = _choose_within(policy, share_prompts)
        if length_limit(policy.network.config) is not None:
            policy.computation = ByLength(policy.computation)
            _check_lengths(policy)
    asked_for = PackedPrompts if share_prompts else PaddedRows
    computation = policy.computation
    if isinstance(computation, ByLength):
        computation = computation.within
    if type(computation) is asked_for:
        return None
    return f"{computation.loss}, because {reason} ('{policy.name}'). Results are as exact, but slower."


def _choose_within(policy: Any, share_prompts: bool) -> str | None:
    """Choose by texts up to `length_limit`; returns the reason against the last computation that disagrees."""
    sample = Sample.of(policy)
    reason = None
    if share_prompts:
        reason = _try_sharing(policy, sample)
        if reason is None:
            return None
    for rows in (PaddedRows, SingleRows, UncachedRows):
        policy.computation = rows()
        difference = sample.difference(policy)
        if difference is None:
            _try_projecting(policy, sample)
            return reason
        reason = difference
    raise UserError(
        f"Expected a causal language model, whose probabilities depend on earlier tokens alone, but got "
        f"'{policy.name}' ({type(policy.network).__name__}), since {reason}, try another model."
    )


def _try_sharing(policy: Any, sample: Sample) -> str | None:
    """Share prompts; the reason against it, if any, and then the model has its former attention again."""
    reason = obstacle(policy.network)
    if reason is not None:
        return reason
    policy.computation = PackedPrompts()
    before = share_attention(policy.network)
    reason = sample.difference(policy)
    if reason is None and policy.device.type in OTHER_IN_BFLOAT16:
        reason = _difference_in_bfloat16(policy, sample)
    if reason is not None:
        policy.network.set_attn_implementation(before)
    return reason


def _difference_in_bfloat16(policy: Any, sample: Sample) -> str | None:
    """The reason against shared prompts under bf16-mixed, if any: they lose more digits than transformers' own pass."""
    shared = policy.computation
    with torch.autocast(policy.device.type, torch.bfloat16):
        try:
            gap = sample.gap(_training_log_probs(policy, sample.examples))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return f"{type(policy.network).__name__} fails in bfloat16{_in_passes(policy)} ({first_line(error)})"
        policy.computation = UncachedRows()
        rounding = sample.gap(_training_log_probs(policy, sample.examples))
    policy.computation = shared
    if gap <= 4 * rounding + CLEAR:
        return None
    return f"its log-probabilities in bfloat16 would differ by {gap:.2g}{_in_passes(policy)}, not by {rounding:.2g}"


@contextmanager
def _moved_adapters(policy: Any) -> Iterator[None]:
    """Context: noise is added to the weights of adapters, if the policy has some."""
    adapters = [weight for name, weight in policy.named_parameters() if ".lora_" in name]
    before = [weight.detach().clone() for weight in adapters]
    draw = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for weight in adapters:
                weight += MOVED * torch.randn(weight.shape, generator=draw, device="cpu").to(weight)
        yield
    finally:
        with torch.no_grad():
            for weight, values in zip(adapters, before, strict=True):
                weight.copy_(values)


def _check_adapters(policy: Any) -> None:
    """Refuse adapters that act on none of the sample's tokens, such as those of activated LoRA (aLoRA).

    aLoRA's adapters act after an invocation in the prompt, which passes other than peft's own would not find.
    """
    if not hasattr(policy.model, "disable_adapter"):
        return
    sample = Sample.of(policy)
    with policy.model.disable_adapter():
        without = _training_log_probs(policy, sample.examples)
    if sample.gap(without) == 0:
        raise UserError(
            f"Expected the adapters of '{policy.name}' to change log-probabilities, but got none that differs, because "
            "they act on some tokens alone (activated LoRA, alora_invocation_tokens) or are turned off, try LoRA "
            "without an invocation."
        )


def _try_projecting(policy: Any, sample: Sample) -> None:
    """Compute logits from hidden states in chunks, if that agrees with transformers' own logits."""
    if output_obstacle(policy.network) is not None:
        return
    whole = policy.computation
    policy.computation = replace(whole, projects=True)
    if sample.difference(policy, generation=False) is not None:
        policy.computation = whole


def _check_lengths(policy: Any) -> None:
    """Refuse a model whose texts on both sides of `length_limit` don't agree with transformers.

    Generation isn't compared, because the probabilities of a text's earlier tokens change once it grows past the
    limit. `CausalLMPolicy.context_length` keeps the texts of a run within the limit.
    """
    chosen = policy.computation
    with _short_limits(policy.network):
        sample = Sample.of(policy)
        policy.computation = chosen
        reason = sample.difference(policy, generation=False)
    if reason is not None:
        raise UserError(
            f"Expected values of '{policy.name}' ({type(policy.network).__name__}) that depend on no other text, but "
            f"{reason} where a text exceeds the model's limit of length, try another model."
        )


@dataclass(frozen=True)
class Sample:
    """Two made-up prompts of different lengths with two answers each, and the answers' exact log-probabilities.

    Args:
        expected: ``[M]``, of all answers' M tokens.
    """

    examples: Examples
    expected: Tensor

    @classmethod
    def of(cls, policy: Any) -> Sample:
        """Draw prompts and answers, each prompt with an image for a policy that reads images.

        Raises:
            UserError: transformers' pass fails.
        """
        device = policy.device
        vocabulary = len(policy.network.get_input_embeddings().weight)
        # Drawn on the CPU, because a generator draws on its own device alone, and the default device may be a GPU.
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, (2, max(LENGTHS)), generator=draw, device="cpu").to(device)
        answers = torch.randint(vocabulary, (4, max(ANSWERS)), generator=draw, device="cpu").to(device)
        ids, inputs = policy.illustrated(ids, draw)
        # Prompts are padded on the left, and answers on the right.
        missing = max(LENGTHS) - torch.tensor(LENGTHS, device=device)
        prompt_mask = torch.arange(ids.shape[1], device=device) >= missing[:, None]
        answer_lengths = torch.tensor(ANSWERS, device=device)
        mask = torch.arange(max(ANSWERS), device=device) < answer_lengths[:, None]
        group = torch.tensor([0, 0, 1, 1], device=device)
        examples = Examples({}, answers, mask, group, {"prompt_ids": ids, "prompt_mask": prompt_mask, **inputs})
        policy.computation = UncachedRows()
        try:
            expected = _training_log_probs(policy, examples)
        except Exception as error:
            raise UserError(
                f"Expected a causal language model that reads tokens alone, but a pass of '{policy.name}' "
                f"({type(policy.network).__name__}) fails ({first_line(error)}), try another model."
            ) from error
        return cls(examples, expected)

    def difference(self, policy: Any, generation: bool = True) -> str | None:
        """The reason against the policy's present computation, if any."""
        compared: dict[str, Callable[[Any, Examples], Tensor]] = {"training passes": _training_log_probs}
        if generation:
            compared["generation"] = self._generation_log_probs
        for passes, log_probs in compared.items():
            try:
                of_policy = log_probs(policy, self.examples)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                return f"{type(policy.network).__name__} fails{_in_passes(policy)} ({first_line(error)})"
            gap = self.gap(of_policy)
            if not gap <= self._rounding_bound(policy):  # also for NaN
                return f"its log-probabilities in {passes} would differ by {gap:.2g}{_in_passes(policy)}"
        return None

    def gap(self, log_probs: Tensor) -> float:
        """The largest difference of log-probabilities ``[M]`` from the exact ones."""
        return float((log_probs - self.expected).abs().max())

    def _rounding_bound(self, policy: Any) -> float:
        """Bound of some dozen operations' rounding on numbers of this size, some of which are always float32."""
        dtype = policy.network.get_input_embeddings().weight.dtype
        eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        return 64 * eps * max(float(self.expected.abs().max()), 1.0)

    @torch.no_grad()
    def _generation_log_probs(self, policy: Any, examples: Examples) -> Tensor:
        """Log-probabilities of the answers, token by token as in generation."""
        prompt_lengths = examples.shared["prompt_mask"].sum(-1).cpu()
        limits = torch.full_like(prompt_lengths, max(ANSWERS))
        continuation = policy.continuation(PromptBatch(dict(examples.shared), prompt_lengths, limits, 2))
        lengths = torch.tensor(ANSWERS, device="cpu")
        rows = torch.arange(len(ANSWERS), device="cpu")  # of the answers that go on
        log_probs = torch.zeros_like(examples.actions, dtype=self.expected.dtype)
        logits = continuation.read().repeat_interleave(2, 0)
        for step in range(max(ANSWERS)):
            tokens = examples.actions[rows, step]
            scaled = logits.to(log_probs.dtype) / policy.temperature
            log_probs[rows, step] = scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
            kept = (lengths[rows] > step + 1).nonzero()[:, 0]
            if len(kept):
                all_go_on = len(kept) == len(rows)
                rows = rows[kept]
                logits = continuation.next(None if all_go_on else kept, tokens[kept])
        return log_probs[examples.mask]


def _training_log_probs(policy: Any, examples: Examples) -> Tensor:
    """Log-probabilities of the answers in a training pass, which may recompute activations."""
    mode = policy.training
    policy.train()
    try:
        with torch.enable_grad():
            log_probs: Tensor = policy(examples).log_probs[examples.mask].detach()
    finally:
        policy.train(mode)
    return log_probs


def _in_passes(policy: Any) -> str:
    """The kind of passes, for messages."""
    if policy.shares_prompts:
        return " when prompts are shared"
    if policy.pads:
        return " in padded rows"
    return ""


@contextmanager
def _full_precision() -> Iterator[None]:
    """Switch TF32 off, because its rounding exceeds the bound of the comparison."""
    with warnings.catch_warnings():
        # torch 2.9 advises its newer settings, which must not be mixed with the older that Lightning reads.
        warnings.filterwarnings("ignore", message="Please use the new API settings")
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _short_windows(network: Any) -> AbstractContextManager[None]:
    """Context: attention leaves out tokens of the made-up texts, as it does of texts beyond its windows."""
    return _shortened_settings([*_configurations_of(network), *network.modules()], WINDOWS)


def _short_limits(network: Any) -> AbstractContextManager[None]:
    """Context: some of the made-up texts are beyond `length_limit`."""
    parts = [*_configurations_of(network), *network.modules(), *rotations(network.config)]
    return _shortened_settings(parts, (LONGROPE_LIMIT, DYNAMIC_MASK_LIMIT))


def _configurations_of(network: Any) -> list[Any]:
    """The configurations that the modules of a network read."""
    by_id = {id(module.config): module.config for module in network.modules() if hasattr(module, "config")}
    return list(by_id.values())


@contextmanager
def _shortened_settings(holders: list[Any], names: Sequence[str]) -> Iterator[None]:
    """Context: the named settings of `holders` that exceed `SHORT` are `SHORT`.

    Texts of a few tokens then have both sides of what a model does differently from 4,096 tokens, for example, at no
    cost in time or memory.
    """
    changed = []
    for holder in holders:
        settings = holder if isinstance(holder, dict) else vars(holder)
        for name in names:
            value = settings.get(name)
            if isinstance(value, int) and value > SHORT:
                changed.append((settings, name, value))
                settings[name] = SHORT
    try:
        yield
    finally:
        for settings, name, value in changed:
            settings[name] = value
