"""Detection of models that allow shared prompts exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.shared_prefix.attention import NAME, UnsupportedAttentionError, register
from lightning_cgrpo.rollout import Examples

Pass = Callable[[Examples], PolicyOutput]
Illustrate = Callable[[Tensor, torch.Generator], tuple[Tensor, dict[str, Tensor]]]
"""Adds images to made-up prompts ``[B, S]``, and gives the policy's further inputs."""

# Settings of the output layer that `linear_log_probs` ignores, and their neutral values.
NEUTRAL_OUTPUT = {"final_logit_softcapping": (None,), "logits_scaling": (None, 1), "logit_scale": (None, 1)}


def agrees(network: Any, padded: Pass, whole: Pass, illustrated: Illustrate) -> bool:
    """Compare log-probabilities from hidden states with those from transformers' logits."""
    with _full_precision():
        return output_obstacle(network) is None and _difference(network, padded, whole, illustrated) is None


def prepare(network: Any, packed: Pass, whole: Pass, illustrated: Illustrate) -> str | None:
    """Set a model up for packed passes, or return the reason why they would be wrong."""
    reason = obstacle(network)
    if reason is not None:
        return reason
    before = network.config._attn_implementation
    register()
    network.set_attn_implementation(NAME)
    try:
        with _full_precision():
            reason = _difference(network, packed, whole, illustrated)
    except UnsupportedAttentionError as error:  # any other exception is a fault
        reason = str(error)
    if reason is not None:
        network.set_attn_implementation(before)
    return reason


def obstacle(model: Any) -> str | None:
    """The reason against shared prompts in a model's configuration or output layer, if any."""
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
        return f"transformers cannot replace the attention of {type(model).__name__}"
    return output_obstacle(model)


def output_obstacle(model: Any) -> str | None:
    """The reason why hidden states and the output layer's weight alone don't give logits, if any."""
    config = model.config.get_text_config()
    for name, neutral in NEUTRAL_OUTPUT.items():
        if getattr(config, name, None) not in neutral:
            return f"its logits go through {name}"
    if model.base_model is model:
        return f"{type(model).__name__} has no base model that gives hidden states"
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return "its output layer is not a plain linear layer"
    return None


@contextmanager
def _full_precision() -> Iterator[None]:
    """Switch TF32 off, because its rounding exceeds the bound of the comparison."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def _difference(network: Any, one: Pass, other: Pass, illustrated: Illustrate) -> str | None:
    """Compare both computations on two made-up prompts; returns a reason if they differ."""
    embeddings = network.get_input_embeddings()
    device, size = embeddings.weight.device, embeddings.num_embeddings
    # Drawn on the CPU, because a generator draws on its own device alone, and the default device may be a GPU.
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(size, (2, 5), generator=draw, device="cpu").to(device)
    answers = torch.randint(size, (4, 4), generator=draw, device="cpu").to(device)
    ids, inputs = illustrated(ids, draw)
    mask = torch.arange(ids.shape[1], device=device) >= torch.tensor([[1], [0]], device=device)
    taken = torch.arange(4, device=device) < torch.tensor([[4], [2], [3], [4]], device=device)
    group = torch.tensor([0, 0, 1, 1], device=device)
    examples = Examples({}, answers, taken, group, {"prompt_ids": ids, "prompt_mask": mask, **inputs})
    found, expected = (forward(examples).log_probs[taken] for forward in (one, other))
    gap = float((found - expected).abs().max())
    # Rounding of some dozen operations on numbers of this size.
    bound = 64 * torch.finfo(embeddings.weight.dtype).eps * max(float(expected.abs().max()), 1.0)
    return None if gap <= bound else f"its log-probabilities differ by {gap:.2g} when prompts are shared"
