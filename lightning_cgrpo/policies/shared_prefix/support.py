"""Obstacles to shared prompts in a model's configuration."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_cgrpo.policies.shared_prefix.attention import NAME, register

LONGROPE_LIMIT = "original_max_position_embeddings"
"""Setting of longrope: longer texts have other rotations."""
DYNAMIC_MASK_LIMIT = "keep_window_size"
"""Setting of Doge's attention: in longer texts, tokens choose the tokens that they attend to among later ones too."""

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
    if not getattr(model, "_supports_attention_backend", False):
        return f"transformers cannot replace the attention of {type(model).__name__}"
    return output_obstacle(model)


def rotations(config: Any) -> list[dict[str, Any]]:
    """Settings of a model's rotary positions, of all layers or of each kind of layer."""
    parameters: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [part for part in parameters.values() if isinstance(part, dict)]


def length_limit(config: Any) -> int | None:
    """Tokens up to which a text's values don't depend on its length; None if they never do.

    Beyond the limit, the length of the longest text of a pass changes the values of all its tokens.
    """
    limits = []
    for rotation in rotations(config):
        kind = rotation.get("rope_type")
        if kind == "longrope":
            limits.append(int(rotation[LONGROPE_LIMIT]))
        elif kind == "dynamic":
            limits.append(int(config.get_text_config().max_position_embeddings))
    dynamic_mask = getattr(config.get_text_config(), DYNAMIC_MASK_LIMIT, None)
    if dynamic_mask is not None:
        limits.append(int(dynamic_mask))
    return min(limits, default=None)


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
