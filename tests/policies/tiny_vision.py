"""A tiny Qwen2.5-VL with random weights, as a directory."""

from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.policies.tiny.text import TEXTS, empty_directory, train_tokenizer
from lightning_cgrpo.policies.tiny.vision import (
    CHAT_TEMPLATE,
    IMAGE,
    VIDEO,
    VISION_END,
    VISION_START,
    build_vision_model,
    image_processor,
)


def make_tiny_vision_model(
    directory: str | Path,
    texts: Sequence[str] | None = None,
    hidden_size: int = 64,
    layers: int = 2,
    vision_layers: int = 2,
) -> Path:
    """Write a Qwen2.5-VL with random weights, a tokenizer and an image processor.

    Args:
        hidden_size: of language model and vision tower, with 4 heads each; a multiple of 16.
        vision_layers: number; the last attends to whole images, earlier layers to windows of 4 x 4 tokens.
    """
    path = empty_directory(directory)
    tokenizer = train_tokenizer(TEXTS if texts is None else texts, 512, [VISION_START, VISION_END, IMAGE, VIDEO])
    tokenizer.chat_template = CHAT_TEMPLATE
    model = build_vision_model(
        tokenizer, hidden_size, layers, 3 * hidden_size, hidden_size, vision_layers, patch_size=8, context_length=2048
    )
    for part in (model, tokenizer, image_processor(patch_size=8)):
        part.save_pretrained(path)
    return path
