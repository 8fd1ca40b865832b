"""Obstacles to shared prompts in a model's configuration."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_cgrpo.policies.shared_prefix.attention import NAME, register

# Settings of the output layer that `linear_log_probs` ignores, and their neutral values.
NEUTRAL_OUTPUT = {"final_logit_softcapping": (None,), "logits_scaling": (None, 1), "logit_scale": (None, 1)}


def share_attention(network: Any) -> str:
    """Give a model the attention of packed passes; returns the name of the former attention."""
    before: str = network.config._attn_implementation
    register()
    network.set_attn_implementation(NAME)
    return before


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
