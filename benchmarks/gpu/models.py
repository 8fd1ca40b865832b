"""Models with Qwen2.5's sizes and random weights, and lists of prompts."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
"""Each has two key-value heads and a vocabulary of 151,936."""
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUP = 8
"""Answers to a prompt."""


def build(sizes: dict[str, int], vocabulary: int, device: torch.device) -> CausalLMPolicy:
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        **sizes,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        return CausalLMPolicy.from_model(model, make_tokenizer())


def random_tokens(*shape: int) -> Tensor:
    """The same tokens in each call, neither end nor padding."""
    return torch.randint(2, 2048, shape, generator=torch.Generator().manual_seed(0))
