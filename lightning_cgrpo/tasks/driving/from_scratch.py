"""A tiny vision-language model with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.scene import Scene
from lightning_cgrpo.core.randomness import run_seed
from lightning_cgrpo.policies.tiny.number_tokens import train_number_tokenizer
from lightning_cgrpo.policies.tiny.vision import (
    CHAT_TEMPLATE,
    IMAGE,
    VIDEO,
    VISION_END,
    VISION_START,
    build_vision_model,
    image_processor,
)
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy
from lightning_cgrpo.tasks.driving.observations import Observations
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages

TOKENIZER_SCENES = 20
VOCABULARY = 512
PATCH, MERGE = 8, 4
SIZES: dict[str, Any] = {
    "hidden_size": 96,  # of the language model, with 4 heads; a multiple of 16
    "layers": 3,
    "feed_forward": 256,
    "vision_hidden_size": 32,  # of the vision tower, with 4 heads
    "vision_layers": 2,
    "patch_size": PATCH,
    "merge_size": MERGE,
    "context_length": 512,
    "rope_theta": 10.0,
}
"""An image of 64 x 64 pixels is 4 tokens."""


class VisionFromScratch(VisionLanguagePolicy):
    """A Qwen2.5-VL with random weights and single tokens for numbers, see `number_tokens`.

    It has 698 thousand parameters, drawn by the seed of `lightning.seed_everything`.
    """

    def __init__(self) -> None:
        super().__init__("a model from scratch")

    def load(self) -> None:
        if self.model is None:
            with torch.device("cpu"):  # scenes are generated on the CPU
                scenes = GeneratedScenes().scenes("train")[:TOKENIZER_SCENES]
                texts: list[str] = []
                for scene in scenes:
                    texts += [*_prompt_texts(scene), Observations()(scene)]
            special = [VISION_START, VISION_END, IMAGE, VIDEO]
            self.tokenizer = train_number_tokenizer(texts, VOCABULARY, decimals=True, special=special)
            self.tokenizer.chat_template = CHAT_TEMPLATE
            model = build_vision_model(self.tokenizer, **SIZES, seed=run_seed())
            self.model = model.float().to(torch.get_default_device())
            self.image_processor = image_processor(PATCH, MERGE)
        super().load()


def _prompt_texts(scene: Scene) -> Iterator[str]:
    for part in messages(scene, PromptFormat())[-1]["content"]:
        if part["type"] == "text":
            yield part["text"]
