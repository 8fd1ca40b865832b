"""A tiny vision-language model to be trained from random weights, on generated driving scenes."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_cgrpo.policies.number_tokens import train_number_tokenizer
from lightning_cgrpo.policies.tiny_vision import (
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
from lightning_cgrpo.tasks.driving.scene import Scene
from lightning_cgrpo.tasks.driving.sources.generator import GeneratedScenes

TOKENIZER_SCENES = 20
ROPE_THETA = 10.0


class VisionFromScratch(VisionLanguagePolicy):
    """A Qwen2.5-VL with random weights, to which numbers are single tokens; see `number_tokens`.

    The defaults have 698 thousand parameters. What it learns is kept by `save_pretrained`, as a directory for
    `VisionLanguagePolicy`.

    Args:
        hidden_size: of the language model, which has 4 heads; a multiple of 16.
        layers: of the language model.
        feed_forward: width of its feed-forward layers.
        vision_hidden_size: of the vision tower, which has 4 heads, too.
        vision_layers: of the vision tower.
        patch_size: pixels along each side of a patch.
        merge_size: patches along each side of a token.
        vocabulary: tokens.
        context_length: positions, for prompt and answer.
        seed: of the weights.
    """

    def __init__(
        self,
        hidden_size: int = 96,
        layers: int = 3,
        feed_forward: int = 256,
        vision_hidden_size: int = 32,
        vision_layers: int = 2,
        patch_size: int = 8,
        merge_size: int = 4,
        vocabulary: int = 512,
        context_length: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__("a model from scratch")
        self.sizes = {
            "hidden_size": hidden_size,
            "layers": layers,
            "feed_forward": feed_forward,
            "vision_hidden_size": vision_hidden_size,
            "vision_layers": vision_layers,
            "patch_size": patch_size,
            "merge_size": merge_size,
            "context_length": context_length,
            "seed": seed,
        }
        self.vocabulary = vocabulary

    def load(self) -> None:
        if self.model is None:
            scenes = GeneratedScenes().scenes("train")[:TOKENIZER_SCENES]
            texts = [text for scene in scenes for text in (*_texts(scene), Observations()(scene))]
            special = [VISION_START, VISION_END, IMAGE, VIDEO]
            self.tokenizer = train_number_tokenizer(texts, self.vocabulary, decimals=True, special=special)
            self.tokenizer.chat_template = CHAT_TEMPLATE
            self.model = build_vision_model(self.tokenizer, **self.sizes, rope_theta=ROPE_THETA).float()
            self.image_processor = image_processor(self.sizes["patch_size"], self.sizes["merge_size"])
        super().load()


def _texts(scene: Scene) -> Iterator[str]:
    """Of the prompt about a scene."""
    for part in messages(scene, PromptFormat())[-1]["content"]:
        if part["type"] == "text":
            yield part["text"]
