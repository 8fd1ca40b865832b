"""The architecture of a tiny Qwen2.5-VL with random weights, made without a network."""

from __future__ import annotations

from typing import Any

from lightning_cgrpo.core.randomness import random_weights
from lightning_cgrpo.policies.tiny.text import END_OF_TEXT, TURN_END

VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def image_processor(patch_size: int, merge_size: int = 2) -> Any:
    """Image processor with 4 to 256 tokens per image, of merge_size x merge_size patches."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = (merge_size * patch_size) ** 2  # of a token
    return Qwen2VLImageProcessorPil(
        patch_size=patch_size, merge_size=merge_size, min_pixels=4 * pixels, max_pixels=256 * pixels
    )


def build_vision_model(
    tokenizer: Any,
    hidden_size: int,
    layers: int,
    feed_forward: int,
    vision_hidden_size: int,
    vision_layers: int,
    patch_size: int,
    context_length: int,
    seed: int = 0,
    rope_theta: float = 10_000.0,
    merge_size: int = 2,
) -> Any:
    """A Qwen2.5-VL with random weights.

    Args:
        rope_theta: base of position frequencies; a large base makes columns look alike to a small head.
        merge_size: patches along each side of a token.
    """
    from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    end_of_text, turn_end, start, end, image, video = tokenizer.convert_tokens_to_ids(
        [END_OF_TEXT, TURN_END, VISION_START, VISION_END, IMAGE, VIDEO]
    )
    half_width = hidden_size // 8  # of a head, split over time, height and width
    spatial = half_width * 3 // 8
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": feed_forward,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": context_length,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": rope_theta,
                "mrope_section": [half_width - 2 * spatial, spatial, spatial],
            },
            "bos_token_id": None,
            "eos_token_id": turn_end,
            "pad_token_id": end_of_text,
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden_size,
            "intermediate_size": 2 * vision_hidden_size,
            "num_heads": 4,
            "patch_size": patch_size,
            "spatial_merge_size": merge_size,
            "window_size": 4 * merge_size * patch_size,
            "fullatt_block_indexes": [vision_layers - 1],
            "out_hidden_size": hidden_size,
        },
        tie_word_embeddings=True,
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    with random_weights(seed):
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(eos_token_id=[turn_end, end_of_text], pad_token_id=end_of_text)
    return model
