"""A tiny language model with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lightning_cgrpo.core.randomness import run_seed
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.number_tokens import train_number_tokenizer
from lightning_cgrpo.policies.tiny.text import build_model
from lightning_cgrpo.tasks.gsm8k.demonstrations import Manners, demonstrate
from lightning_cgrpo.tasks.gsm8k.word_problems import problem

TOKENIZER_TEXTS = 2_000


class FromScratch(CausalLMPolicy):
    """A Qwen2 with random weights and single tokens for numbers, see `number_tokens` and `build_model`.

    The defaults have 355 thousand parameters. `seed` defaults to the seed of `lightning.seed_everything`.
    """

    def __init__(
        self,
        hidden_size: int = 96,
        layers: int = 3,
        heads: int = 4,
        feed_forward: int = 256,
        vocabulary: int = 516,
        context_length: int = 256,
        seed: int | None = None,
    ) -> None:
        super().__init__("a model from scratch")
        self.sizes = {"hidden_size": hidden_size, "layers": layers, "heads": heads, "feed_forward": feed_forward}
        self.vocabulary, self.context_length_, self.seed = vocabulary, context_length, seed

    def load(self) -> None:
        if self.model is None:
            self.tokenizer = self.trained_tokenizer()
            seed = run_seed(self.seed)
            model = build_model(self.tokenizer, **self.sizes, context_length=self.context_length_, seed=seed)
            self.model = model.float().to(torch.get_default_device())
        super().load()

    def trained_tokenizer(self) -> Any:
        problems = [problem(0, "train", index) for index in range(TOKENIZER_TEXTS)]
        draw = np.random.default_rng(0)
        texts = [text for p in problems for text in (p.question, demonstrate(p, Manners(), draw))]
        return train_number_tokenizer(texts, self.vocabulary)
