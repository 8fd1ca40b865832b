"""A tiny language model with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lightning_cgrpo.core.randomness import run_seed
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.number_tokens import train_number_tokenizer
from lightning_cgrpo.policies.tiny.text import build_model
from lightning_cgrpo.tasks.gsm8k.demonstrations import Manners, demonstrate
from lightning_cgrpo.tasks.gsm8k.word_problems import problem_at

TOKENIZER_TEXTS = 2_000


class FromScratch(CausalLMPolicy):
    """A Qwen2 with random weights and single tokens for numbers, see `number_tokens` and `build_model`.

    It has 355 thousand parameters, drawn by the seed of `lightning.seed_everything`.
    """

    sizes: Mapping[str, int] = {
        "hidden_size": 96,
        "layers": 3,
        "heads": 4,
        "feed_forward": 256,
        "context_length": 256,
    }
    vocabulary = 516

    def __init__(self) -> None:
        super().__init__("a model from scratch")

    def load(self) -> None:
        if self.model is None:
            self.tokenizer = self.trained_tokenizer()
            model = build_model(self.tokenizer, **self.sizes, seed=run_seed())
            self.model = model.float().to(torch.get_default_device())
        super().load()

    def trained_tokenizer(self) -> Any:
        problems = [problem_at(0, "train", index) for index in range(TOKENIZER_TEXTS)]
        draw = np.random.default_rng(0)
        texts = []
        for solved in problems:
            texts += [solved.question, demonstrate(solved, Manners(), draw)]
        return train_number_tokenizer(texts, self.vocabulary)
