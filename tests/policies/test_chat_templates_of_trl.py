"""Every chat template that TRL ships: demonstrations are right or refused in one line, and end with a stop token."""

import copy
import re
from itertools import groupby
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.modules.supervised import demonstration_rollouts
from lightning_cgrpo.policies import causal_lm
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import TEXTS, build_model, train_tokenizer

trl = pytest.importorskip("trl")

# Of families that many train; the others may be refused.
RIGHT = ("qwen2_5", "qwen2_5_training", "qwen3_training", "qwen3_instruct_2507", "qwen3_vl", "llama3_1", "llama3_2")
TEMPLATES = sorted(Path(trl.__file__).parent.glob("chat_templates/*.jinja"))
BAR = "[|\N{FULLWIDTH VERTICAL LINE}]"
CONTROL = re.compile(rf"<{BAR}[\w▁]+{BAR}>|<[|]\w+>|<\w+[|]>|<(?:start|end)_of_\w+>|<image>|</s>|\[/?INST\]")
QUESTION = {"role": "user", "content": "How many?"}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"name": "Ann"}}}
RESULT = {"role": "tool", "name": "look_up", "content": "7"}
EMPTY = "<think>\n\n</think>\n\n"
SEVEN = {"role": "assistant", "content": "Seven."}
COMPLETIONS = {
    "one turn": [SEVEN],
    "two turns": [SEVEN, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Quite."}],
    "a call": [{**SEVEN, "content": "", "tool_calls": [CALL]}, RESULT, SEVEN],
}


@pytest.fixture(scope="module")
def base():
    tokenizer = train_tokenizer(TEXTS, 400)
    return tokenizer, build_model(tokenizer, 32, 1, 4, 64, 8192, seed=0)


def policy_of(template, base, monkeypatch):
    """A base model, whose files name no end token but <|endoftext|>, with all control tokens of the template."""
    monkeypatch.setattr(causal_lm, "choose", lambda policy, shares: None)  # needs no passes
    tokenizer, model = copy.deepcopy(base)
    text = template.read_text()
    tokenizer.add_special_tokens({"additional_special_tokens": sorted({*CONTROL.findall(text)})})
    tokenizer.eos_token, tokenizer.bos_token, tokenizer.chat_template = "<|endoftext|>", "<|im_start|>", text
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return CausalLMPolicy.from_model(model, tokenizer)


def outcome(policy, completion):
    """ "right", or the line with which it is refused."""
    rows = {"prompt": [[QUESTION]], "completion": [completion]}
    try:
        made = demonstration_rollouts(policy, PromptGroups(torch.arange(1), rows))
    except UserError as error:
        return str(error)
    tokens, own = made.actions[0, 0].tolist(), made.mask[0, 0].tolist()
    turns = [[tokens[place] for place, _ in part] for mine, part in groupby(enumerate(own), lambda x: x[1]) if mine]
    texts = [policy.tokenizer.decode(turn) for turn in turns]
    written = [message for message in completion if message["role"] == "assistant"]
    assert len(turns) == len(written)
    for turn, text, message in zip(turns, texts, written, strict=True):
        assert turn[-1] in policy.stop_tokens and not {*turn[:-1]} & {*policy.stop_tokens}, text
        assert message["content"] in text, text
        assert all(part in text for part in ("look_up", "name", "Ann")) or "tool_calls" not in message, text
        assert "null" not in text and "None" not in text
    # The text of the whole conversation, as the template writes it, up to the end of the last turn. Some write an
    # empty reasoning into the last turn alone, and each turn was the last when it was sampled.
    whole = policy.tokenizer.apply_chat_template([QUESTION, *completion], tokenize=False)
    row = policy.tokenizer.decode([*made.inputs["prompt_ids"][0].tolist(), *tokens])
    assert whole.replace(EMPTY, "").startswith(row.replace(EMPTY, ""))
    return "right"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_demonstrations_are_right_or_refused(template, base, monkeypatch):
    policy = policy_of(template, base, monkeypatch)
    told = {kind: outcome(policy, completion) for kind, completion in COMPLETIONS.items()}
    for line in told.values():
        assert line == "right" or (line.startswith("Expected") and "\n" not in line)
    if template.stem in RIGHT:
        assert told == dict.fromkeys(COMPLETIONS, "right")
