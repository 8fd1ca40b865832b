"""Which models the shared computation is exact for: what is known to differ, by name, and a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_cgrpo.policies.shared_prefix.attention import NAME, UnsupportedAttentionError, register

if TYPE_CHECKING:
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy

# Settings of a model's output layer that are not computed here, and the values with which they do nothing.
NEUTRAL_OUTPUT = {"final_logit_softcapping": (None,), "logits_scaling": (None, 1), "logit_scale": (None, 1)}


def prepare(policy: CausalLMPolicy) -> str | None:
    """Set the policy's model up for packed rows, or leave it as it was and return why it can't share prompts.

    Only `UnsupportedAttentionError` counts as a reason; any other exception of the comparison is raised.
    """
    model = policy.network
    reason = obstacle(model)
    if reason is not None:
        return reason
    before = model.config._attn_implementation
    register()
    model.set_attn_implementation(NAME)
    try:
        with _full_precision():
            reason = _difference(policy)
    except UnsupportedAttentionError as error:
        reason = str(error)
    if reason is not None:
        model.set_attn_implementation(before)
    return reason


def obstacle(model: Any) -> str | None:
    """What the configuration or the output layer of a model says against it."""
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    if layers is not None:
        others = sorted(set(layers) - {"full_attention"})
        if others:
            return f"its layers have {', '.join(others)}"
    elif getattr(config, "sliding_window", None) is not None:
        return f"its attention has a sliding window of {config.sliding_window}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return f"its positions depend on the longest text of a batch (rope_type {rope['rope_type']})"
    if not getattr(model, "_supports_attention_backend", False):
        return f"transformers lets nobody replace the attention of {type(model).__name__}"
    for name, neutral in NEUTRAL_OUTPUT.items():
        if getattr(config, name, None) not in neutral:
            return f"its logits go through {name}"
    if model.base_model is model:
        return f"{type(model).__name__} has no base model that gives hidden states"
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return "its output layer is not a plain linear one"
    return None


@contextmanager
def _full_precision() -> Iterator[None]:
    """Compute float32 products in float32, because the rounding of TF32 exceeds the bound of the comparison."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def _difference(policy: CausalLMPolicy) -> str | None:
    """Compare both computations on two made-up prompts, to catch unsupported models."""
    draw = torch.Generator().manual_seed(0)
    size = policy.network.get_input_embeddings().num_embeddings
    # Drawn on the CPU, because a generator draws on its own device alone, and the default device may be a GPU.
    ids = torch.randint(size, (2, 5), generator=draw, device="cpu").to(policy.device)
    mask = torch.tensor([[False, True, True, True, True], [True] * 5], device=policy.device)
    answers = torch.randint(size, (4, 4), generator=draw, device="cpu").to(policy.device)
    lengths = torch.tensor([4, 2, 3, 4], device=policy.device)
    taken = torch.arange(4, device=policy.device) < lengths[:, None]
    group = torch.tensor([0, 0, 1, 1], device=policy.device)
    shared, _ = policy.packed_log_probs(ids, mask, answers, taken, group)
    alone, _ = policy.padded_log_probs(ids, mask, answers, taken, group)
    shared, alone = shared[taken], alone[taken]
    gap = float((shared - alone).abs().max())
    # Rounding of some dozen operations on numbers of this size.
    bound = 64 * torch.finfo(policy.dtype_of_weights).eps * max(float(alone.abs().max()), 1.0)
    return None if gap <= bound else f"its log-probabilities differ by {gap:.2g} when prompts are shared"
