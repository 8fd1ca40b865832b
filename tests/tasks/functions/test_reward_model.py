"""A reward model gives the score of the text alone, at its last attended token, whatever the padding."""

import copy
import json
import pickle

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    Gemma3Config,
    GPT2Config,
    Qwen2Config,
    RobertaConfig,
)

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.randomness import random_weights
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.tasks.functions import RewardModel
from tests.refusals import refused

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
    "roberta": lambda pad: RobertaConfig(
        **BERT, num_attention_heads=4, pad_token_id=pad, max_position_embeddings=pad + 257
    ),
}


def write(folder, family, pad):
    """A reward model of random weights; its tokenizer, which has no padding token of its own, and the model."""
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(folder / "tiny", hidden_size=32, layers=1))
    tokenizer.pad_token, tokenizer.chat_template = None, TEMPLATE
    config = CONFIGURATIONS[family](pad)
    config.num_labels = 1
    with random_weights(0):
        model = AutoModelForSequenceClassification.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(8)
    model.save_pretrained(folder / "scores")
    tokenizer.save_pretrained(folder / "scores")
    return tokenizer, model


@pytest.mark.parametrize("pad", [None, 9])
@pytest.mark.parametrize("family", ["qwen2", "gpt2", "composite", "encoder"])
def test_padding_is_no_matter(family, pad, tmp_path):
    """Of chats and of texts, which end with the token that pads them, whatever else is in the batch."""
    tokenizer, model = write(tmp_path, family, pad)
    prompts, answers = ["How many?", "Tom has 3 apples and buys 4 more.", "So"], [" 7", " He has 7 apples now.", " 8"]
    by_role = {"user": prompts, "assistant": answers}
    chats = [[[{"role": role, "content": text}] for text in texts] for role, texts in by_role.items()]
    for asked, said in ((prompts, answers), chats):
        expected = []
        for prompt, answer in zip(asked, said, strict=True):
            text = prompt + answer
            text = text if isinstance(text, str) else tokenizer.apply_chat_template(text, tokenize=False)
            ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
            if family == "encoder":
                score = model(ids).logits[0]
            else:
                score = model.score(model.base_model(ids).last_hidden_state[0, -1])
            expected.append(score.item())
        assert abs(expected[0] - expected[1]) > 1e-3
        rewards = RewardModel(str(tmp_path / "scores"), batch_size=2)(asked, said)
        assert rewards == pytest.approx(expected, abs=1e-4)


def test_texts_beside_chats(tmp_path):
    write(tmp_path, "qwen2", 9)
    model = RewardModel(str(tmp_path / "scores"))
    texts, chats = (
        (["How many?"], [" 7"]),
        ([[{"role": "user", "content": "So"}]], [[{"role": "assistant", "content": "8"}]]),
    )
    both = model(texts[0] + chats[0], texts[1] + chats[1])
    assert both == pytest.approx(model(*texts) + model(*chats), abs=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "composite", "roberta"])
def test_a_text_beyond_the_positions_is_refused(family, tmp_path):
    """RoBERTa's first positions are the padding's."""
    tokenizer, _ = write(tmp_path, family, 9)
    model = RewardModel(str(tmp_path / "scores"))
    word = " there"
    longest = 256 // len(tokenizer(word).input_ids) * word
    assert len(model([""], [longest])) == 1
    assert "of at most 256 tokens, the positions of" in refused(model, ["Hi"], [" there" * 300])


def test_it_is_loaded_when_called_and_by_each_process(tmp_path):
    write(tmp_path, "qwen2", 9)
    model = RewardModel(str(tmp_path / "scores"))
    assert model._loaded is None
    rewards = model(["Hi"], [" there"])
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert copied._loaded is None and copied(["Hi"], [" there"]) == rewards


def test_a_models_own_code_is_never_run(tmp_path, monkeypatch):
    """Whatever standard input says."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    classes = {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    leaves_a_file = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (tmp_path / "own.py").write_text(f"{leaves_a_file}from transformers import LlamaConfig as Own\n")
    with pytest.raises(UserError, match="Expected a folder with a reward model"):
        RewardModel(str(tmp_path))(["a"], ["b"])
    assert not (tmp_path / "ran").exists()
