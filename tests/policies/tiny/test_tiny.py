"""The tiny model: transformers loads it, and its tokenizer survives the round trip."""

import pytest
import tokenizers
import torch
import transformers

from lightning_cgrpo.cli.tiny_model import main
from lightning_cgrpo.policies.tiny.text import TEXTS, make_tiny_model

SAMPLES = [
    *TEXTS,
    "",
    " two  spaces,\ttab\r\nand\n\n lines ",
    "1,234 + 5.6 = \u22127 naïve e\u0301 你好 🙂",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
]


@pytest.mark.parametrize("texts", [None, ["Only these few words, and 100 more, and 100 more."]])
def test_the_tokenizer_re_encodes_identically(tmp_path, texts):
    path = make_tiny_model(tmp_path, texts)
    saved = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    loaded = transformers.AutoTokenizer.from_pretrained(path)
    loaded.save_pretrained(tmp_path / "again")
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in SAMPLES:
        ids = saved.encode(text).ids
        assert loaded(text).input_ids == ids
        assert again(text).input_ids == ids
        assert bool(ids) == bool(text)
        composed = text.replace("e\u0301", "é")  # NFC, as in Qwen's tokenizer
        assert loaded.decode(ids, clean_up_tokenization_spaces=False) == composed


def test_the_seed_decides_the_weights(tmp_path):
    state = torch.get_rng_state()
    paths = [make_tiny_model(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert torch.equal(torch.get_rng_state(), state)
    a, b, c = ((path / "model.safetensors").read_bytes() for path in paths)
    assert a == b
    assert a != c


def test_command(tmp_path, capsys):
    target = tmp_path / "model"
    main([str(target)])
    assert str(target) in capsys.readouterr().out
    assert transformers.AutoConfig.from_pretrained(target).hidden_size == 64
    with pytest.raises(SystemExit):
        main([str(target)])
    assert "new or empty" in capsys.readouterr().err
