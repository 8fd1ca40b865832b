"""A tiny model with random weights of every causal architecture of transformers."""

import contextlib
import io
import warnings

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lightning_cgrpo.randomness import random_weights

SIZES = {
    "vocab_size": 300,
    "head_dim": 8,
    "attention_hidden_size": 32,
    "sliding_window": 6,
    "pad_token_id": 0,
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
LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
OF_FAMILY = {
    "deepseek_v3": {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
                    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 4, "num_key_value_heads": 4},
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "olmo_hybrid"), LAYERS),
}  # fmt: skip


def small(kind, **of_family):
    """A small configuration of a class, with small parts."""
    default = kind()
    sizes = {
        name: value
        for name, value in SIZES.items()
        if hasattr(default, name)
        and not isinstance(getattr(kind, name, None), property)
        and (name == "pad_token_id" or isinstance(default.to_dict().get(name), int))
    }
    parts = {name: small(part).to_dict() for name, part in kind.sub_configs.items() if isinstance(part, type)}
    return kind(**{**sizes, **parts, **of_family})


def build(name, seed=0):
    """A tiny model of a `model_type`, whose probabilities are far from uniform."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), random_weights(seed):
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(small(CONFIG_MAPPING[name], **OF_FAMILY.get(name, {})))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4)
    return model.eval()


NAMES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
