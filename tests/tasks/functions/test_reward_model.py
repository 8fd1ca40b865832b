"""A reward model gives the score of the text alone, at its last attended token, whatever the padding."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    Gemma3Config,
    GPT2Config,
    Qwen2Config,
)

from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.randomness import random_weights
from lightning_cgrpo.tasks.functions import RewardModel

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
TEXT = {
    "vocab_size": 600, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "sliding_window": 64,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
GPT2 = {"vocab_size": 600, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
BERT = {key: TEXT[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
CONFIGURATIONS = {
    "qwen2": lambda pad: Qwen2Config(**TEXT, pad_token_id=pad),
    "gpt2": lambda pad: GPT2Config(**GPT2, pad_token_id=pad),
    "composite": lambda pad: Gemma3Config(text_config={**TEXT, "pad_token_id": pad}, vision_config=VISION),
    "encoder": lambda pad: BertConfig(**BERT, num_attention_heads=4, pad_token_id=pad or 0),
}


@pytest.mark.parametrize("pad", [None, 9])
@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_padding_is_no_matter(family, pad, tmp_path):
    """The tokenizer has no padding token of its own, so texts end with the token that pads them."""
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "tiny", hidden_size=32, layers=1))
    tokenizer.pad_token, tokenizer.chat_template = None, TEMPLATE
    config = CONFIGURATIONS[family](pad)
    config.num_labels = 1
    with random_weights(0):
        model = AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(8)
    model.save_pretrained(tmp_path / "scores")
    tokenizer.save_pretrained(tmp_path / "scores")
    prompts = [[{"role": "user", "content": text}] for text in ("How many?", "Tom has 3 apples and buys 4 more.")]
    answers = [[{"role": "assistant", "content": text}] for text in ("7", "He has 7 apples now.")]
    expected = []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = tokenizer.apply_chat_template(prompt + answer, tokenize=False)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
        if family == "encoder":
            score = model(ids).logits[0]
        else:
            score = model.score(model.base_model(ids).last_hidden_state[0, -1])
        expected.append(score.item())
    assert abs(expected[0] - expected[1]) > 1e-3
    assert RewardModel(str(tmp_path / "scores"), device="cpu")(prompts, answers) == pytest.approx(expected, abs=1e-4)
