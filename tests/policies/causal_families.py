"""A tiny model with random weights of every causal architecture of transformers."""

import contextlib
import io
import warnings

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lightning_cgrpo.core.randomness import random_weights

SIZES = {
    "vocab_size": 300,
    "head_dim": 8,
    "attention_hidden_size": 32,
    "sliding_window": 6,
    "pad_token_id": 0,
    "is_decoder": True,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "rotary_dim": 8,
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "embedding_size"], 32),
    **dict.fromkeys(
        ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "depth"], 2
    ),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], 4),
    **dict.fromkeys(["decoder_attention_heads", "encoder_attention_heads"], 4),
    **dict.fromkeys(["num_key_value_heads", "num_kv_heads"], 2),
    **dict.fromkeys(
        ["intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "n_inner"], 48
    ),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_sequence_length", "context_length"], 128),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_k", "moe_topk"], 2),
}
LATENT = {"qk_rope_head_dim": 4, "head_dim": 4, "num_key_value_heads": 4}
LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
CONVOLUTION = {"layer_types": ["conv", "full_attention"]}
OF_FAMILY = {
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid", "bailing_hybrid"), LAYERS),
    **{name: {"text_config": LAYERS} for name in ("qwen3_5", "qwen3_5_moe")},
    **{name: {"head_dim": 8, "rope_parameters": ROPE} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    **dict.fromkeys(("lfm2", "lfm3"), CONVOLUTION),
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
              "n_group": 1, "topk_group": 1},
    "lfm2_moe": {**CONVOLUTION, "num_dense_layers": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 6, "lru_width": 32},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"]},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip


def small(kind, **of_family):
    """A small configuration of a class, with small parts."""
    default = kind()
    values = default.to_dict()
    sizes = {
        name: value
        for name, value in SIZES.items()
        if (name == "pad_token_id" or isinstance(values.get(name), int))
        and not isinstance(getattr(kind, name, None), property)
    }
    if "qk_rope_head_dim" in values:  # latent attention
        sizes |= LATENT
    parts = {name: small(type(getattr(default, name))).to_dict() for name in kind.sub_configs if values.get(name)}
    for name, values in of_family.items():
        parts[name] = {**parts[name], **values} if name in parts else values
    return kind(**{**sizes, **parts})


def configuration(name, **of_family):
    return small(CONFIG_MAPPING[name], **OF_FAMILY.get(name, {}) | of_family)


def build(name, **of_family):
    """A tiny model of a `model_type`, whose probabilities are far from uniform."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), random_weights(0):
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(configuration(name, **of_family))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)
    model.generation_config = GenerationConfig(eos_token_id=2)
    return model.eval()


NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
