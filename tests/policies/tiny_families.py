"""Tiny models of other families of vision-language models, with random weights, made without files."""

import torch

from lightning_cgrpo.policies.tiny import vision as tiny
from lightning_cgrpo.policies.tiny.text import END_OF_TEXT, TEXTS, TURN_END, train_tokenizer
from tests.policies.tiny_vision import make_tiny_vision_model

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": None,
}  # fmt: skip


def write(directory, family, **text):
    """A model with its tokenizer and image processor in a directory; `text` changes the decoder's configuration."""
    if family == "qwen2_5_vl":
        return make_tiny_vision_model(directory, hidden_size=32)
    model, tokenizer, processor = {"qwen3_vl": qwen3, "internvl": internvl}[family](text)
    for part in (model, tokenizer, processor):
        part.save_pretrained(directory)
    return directory


def _text(tokenizer, changes):
    ends = dict(zip(("eos_token_id", "pad_token_id"), _ids(tokenizer, TURN_END, END_OF_TEXT), strict=True))
    return {**TEXT, "vocab_size": len(tokenizer), **ends, **changes}


def _ids(tokenizer, *tokens):
    return tokenizer.convert_tokens_to_ids(list(tokens))


def _built(config):
    from transformers import AutoModelForImageTextToText, GenerationConfig

    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Far from uniform, and no vector of zeros.
            parameter.copy_(3 * parameter + 0.05 * torch.randn_like(parameter))
    model.generation_config = GenerationConfig(eos_token_id=config.text_config.eos_token_id)
    return model


def qwen3(text):
    """Two of three layers of the vision tower give deepstack features."""
    from transformers import Qwen3VLConfig
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    special = (tiny.VISION_START, tiny.VISION_END, tiny.IMAGE, tiny.VIDEO)
    tokenizer = train_tokenizer(TEXTS, 512, list(special))
    tokenizer.chat_template = tiny.CHAT_TEMPLATE
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={**_text(tokenizer, text), "head_dim": 8, "rope_parameters": rope},
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 8,
            "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2],
        },
        tie_word_embeddings=False,
        **dict(zip(names, _ids(tokenizer, *special), strict=True)),
    )  # fmt: skip
    processor = Qwen2VLImageProcessorPil(patch_size=8, min_pixels=4 * 16**2, max_pixels=64 * 16**2)
    return _built(config), tokenizer, processor


def internvl(text):
    """Tiles of 16 x 16 pixels, of 4 tokens each."""
    from transformers import InternVLConfig
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    tokenizer = train_tokenizer(TEXTS, 512, ["<img>", "</img>", "<IMG_CONTEXT>"])
    # As the released models' template, which writes one placeholder for an image.
    vision = f"{tiny.VISION_START}{tiny.IMAGE}{tiny.VISION_END}"
    tokenizer.chat_template = tiny.CHAT_TEMPLATE.replace(vision, "<IMG_CONTEXT>\\n")
    config = InternVLConfig(
        text_config={"model_type": "qwen2", **_text(tokenizer, text)},
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
            "image_size": 16, "patch_size": 4,
        },
        image_token_id=_ids(tokenizer, "<IMG_CONTEXT>")[0],
        tie_word_embeddings=False,
    )  # fmt: skip
    processor = GotOcr2ImageProcessorPil(size={"height": 16, "width": 16}, max_patches=6)
    return _built(config), tokenizer, processor
