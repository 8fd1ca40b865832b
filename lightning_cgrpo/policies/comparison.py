"""Choice of a computation at loading, by comparison with transformers' own unpadded, uncached pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.policies.shared_prefix.support import obstacle, output_obstacle, share_attention

LENGTHS, ANSWERS = (5, 7), (4, 2, 3, 4)
"""Tokens of the made-up prompts and of two answers to each. Images are put before the third token of a row."""
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


@dataclass(frozen=True)
class Computation:
    """Properties of training passes and generation, which `choose` sets on a policy.

    Args:
        shares_prompts: a pass computes a prompt once for all its answers.
        pads: rows of several prompts are padded; otherwise each answer has a pass of its own.
        caches: generation keeps keys, values and states; otherwise each token reads the whole text again.
        loss: text for the warning, before the reason.
    """

    shares_prompts: bool
    pads: bool
    caches: bool
    loss: str


SHARED = Computation(True, True, True, "")
PADDED = Computation(False, True, True, "Each answer is computed with its own copy of the prompt")
SINGLE = Computation(False, False, True, "Each answer is computed in a pass of its own")
UNCACHED = Computation(
    False, False, False, "Each answer is computed in a pass of its own, and each sampled token reads the whole text"
)


def check_causal(config: Any, name: str) -> None:
    """Refuse a model by its configuration, before weights are read; the `UserError` names the setting."""
    config = config.get_text_config()
    for setting, value in NOT_CAUSAL:
        # `is_decoder` decides where layers can read another text, too; GPT-NeoX is causal without it.
        applies = hasattr(config, "add_cross_attention" if setting == "is_decoder" else setting)
        if applies and getattr(config, setting, None) == value:
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
        UserError: no computation agrees, or transformers' own pass fails.
    """
    reason = None
    with _full_precision():
        sample = Sample.of(policy)
        if share_prompts:
            reason = obstacle(policy.network)
            if reason is None:
                _use(policy, SHARED)
                before = share_attention(policy.network)
                reason = sample.difference(policy)
                if reason is None:
                    return None
                policy.network.set_attn_implementation(before)
        for computation in (PADDED, SINGLE, UNCACHED):
            _use(policy, computation)
            difference = sample.difference(policy)
            if difference is None:
                break
            reason = difference
        else:
            raise UserError(
                f"Expected a causal language model, whose probabilities depend on earlier tokens alone, but got "
                f"'{policy.name}' ({type(policy.network).__name__}), since {reason}, try another model."
            )
        policy.projects = output_obstacle(policy.network) is None
        policy.projects = policy.projects and sample.difference(policy, generation=False) is None
    if computation is PADDED and not share_prompts:
        return None
    return f"{computation.loss}, because {reason} ('{policy.name}'). Results are as exact, but slower."


def _use(policy: Any, computation: Computation) -> None:
    policy.shares_prompts, policy.pads, policy.caches = (
        computation.shares_prompts, computation.pads, computation.caches
    )  # fmt: skip
    policy.projects = False


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
        device, size = policy.device, len(policy.network.get_input_embeddings().weight)
        # Drawn on the CPU, because a generator draws on its own device alone, and the default device may be a GPU.
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(size, (2, max(LENGTHS)), generator=draw, device="cpu").to(device)
        answers = torch.randint(size, (4, max(ANSWERS)), generator=draw, device="cpu").to(device)
        ids, inputs = policy.illustrated(ids, draw)
        missing = torch.tensor([[max(LENGTHS) - length] for length in LENGTHS], device=device)
        mask = torch.arange(ids.shape[1], device=device) >= missing
        real = torch.arange(max(ANSWERS), device=device) < torch.tensor(ANSWERS, device=device)[:, None]
        group = torch.tensor([0, 0, 1, 1], device=device)
        examples = Examples({}, answers, real, group, {"prompt_ids": ids, "prompt_mask": mask, **inputs})
        _use(policy, UNCACHED)
        try:
            expected = _trained(policy, examples)
        except Exception as error:
            raise UserError(
                f"Expected a causal language model that reads tokens alone, but a pass of '{policy.name}' "
                f"({type(policy.network).__name__}) fails ({first_line(error)}), try another model."
            ) from error
        return cls(examples, expected)

    def difference(self, policy: Any, generation: bool = True) -> str | None:
        """The reason against the policy's present computation, if any."""
        try:
            for passes, log_probs in (("training passes", _trained), ("generation", self._generated)):
                if log_probs is _trained or generation:
                    of_policy = log_probs(policy, self.examples)
                    gap = float((of_policy - self.expected).abs().max())
                    # Rounding of some dozen operations on numbers of this size, some of which are always float32.
                    least = torch.finfo(policy.network.get_input_embeddings().weight.dtype).eps
                    eps = max(least, torch.finfo(torch.float32).eps)
                    if not gap <= 64 * eps * max(float(self.expected.abs().max()), 1.0):
                        return f"its log-probabilities in {passes} would differ by {gap:.2g}{_when(policy)}"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return f"{type(policy.network).__name__} fails{_when(policy)} ({first_line(error)})"
        return None

    @torch.no_grad()
    def _generated(self, policy: Any, examples: Examples) -> Tensor:
        """Log-probabilities of the answers, token by token as in generation."""
        prompts = examples.shared["prompt_mask"].sum(-1).cpu()
        continuation = policy.continuation(examples.shared, prompts, 2, max(ANSWERS))
        lengths, rows = torch.tensor(ANSWERS, device="cpu"), torch.arange(len(ANSWERS), device="cpu")
        log_probs = torch.zeros_like(examples.actions, dtype=self.expected.dtype)
        logits = continuation.read().repeat_interleave(2, 0)
        for step in range(max(ANSWERS)):
            tokens = examples.actions[rows, step]
            scaled = logits.to(log_probs.dtype) / policy.temperature
            log_probs[rows, step] = scaled.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
            kept = (lengths[rows] > step + 1).nonzero()[:, 0]
            if len(kept):
                everything = len(kept) == len(rows)
                rows = rows[kept]
                logits = continuation.next(None if everything else kept, tokens[kept])
        return log_probs[examples.mask]


def _trained(policy: Any, examples: Examples) -> Tensor:
    """Log-probabilities of the answers in a training pass, which may recompute activations."""
    mode = policy.training
    policy.train()
    try:
        with torch.enable_grad():
            log_probs: Tensor = policy(examples).log_probs[examples.mask].detach()
    finally:
        policy.train(mode)
    return log_probs


def _when(policy: Any) -> str:
    if policy.shares_prompts:
        return " when prompts are shared"
    return " in padded rows" if policy.pads else ""


@contextmanager
def _full_precision() -> Iterator[None]:
    """Switch TF32 off, because its rounding exceeds the bound of the comparison."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
