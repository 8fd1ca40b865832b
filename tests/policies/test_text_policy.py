"""Prompts become tokens, and answers text."""

import warnings

import pytest
import torch

from tests.refusals import refused


def test_encode_pads_on_the_left(policy):
    texts = ["Tom has 3 apples.", "Tom"]
    ids, mask = policy.read_prompts(texts).values()
    for row, kept, text in zip(ids, mask, texts, strict=True):
        assert kept.tolist() == sorted(kept.tolist())
        assert policy.tokenizer.decode(row[kept]) == text
    assert policy.decode(ids, mask) == texts


def test_encode_applies_the_chat_template(policy):
    messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1?"}]
    ids, mask = policy.read_prompts([messages, "x"]).values()
    text = policy.tokenizer.decode(ids[0][mask[0]])
    assert text == ("<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n")
    assert "<|im_start|>" not in policy.decode(ids, mask)[0]


def test_bad_prompts_are_named(policy, monkeypatch):
    chat, parts = ([{"role": "user", "content": content}] for content in ("Tom", [{"type": "text", "text": "Tom"}]))
    assert "write prompt 0, but it raises" in refused(policy.read_prompts, [[{"role": "judge", "content": "Tom"}]])
    assert "prompt 0 to be of text alone" in refused(policy.read_prompts, [parts])
    assert "prompt 0 to be of text alone" in refused(policy.read_prompts, [[*chat, *parts]])
    assert "prompt 4711 to have at least one" in refused(policy.read_prompts, ["Tom", ""], torch.tensor([5, 4711]))
    monkeypatch.setattr(policy.tokenizer, "chat_template", None)
    assert "prompt 0 to be a text, but got messages" in refused(policy.read_prompts, [chat])
    monkeypatch.setattr(policy, "vocabulary_size", 20)
    assert "of the 20 tokens" in refused(policy.read_prompts, ["Tom"])


def test_texts_that_disagree_with_the_chat_template_are_named_once(policy, monkeypatch):
    """A rendered chat with its begin token, and a text without the template of a model that has one."""
    begin = policy.tokenizer.convert_ids_to_tokens(0)
    monkeypatch.setattr(policy, "_warns_of", dict.fromkeys(policy._warns_of, True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.read_prompts([[{"role": "user", "content": "Tom"}], "<|im_start|>user\nTom<|im_end|>\n"])
        monkeypatch.setattr(policy, "_warns_of", dict.fromkeys(policy._warns_of, True))
    for words, text in (("without the chat template", "Tom"), ("with the end token <.im_end.>", "Tom<|im_end|>")):
        with pytest.warns(match=words) as messages:
            policy.read_prompts([text, text])
        assert len(messages) == 1
    policy.tokenizer.bos_token = begin
    with pytest.warns(match=r"holds <\|endoftext\|>") as messages:
        policy.read_prompts([2 * begin + "Tom", 2 * begin + "Tom"])
    assert len(messages) == 1
