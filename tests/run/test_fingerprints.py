"""Fingerprints: equal for equal content, whatever the layout; different for what changes a run."""

import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_cgrpo.core.prompts.fingerprints import identities, prompt_fingerprint, record_fingerprints
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.run.reads import reads_of


def test_prompts() -> None:
    rows = [{"prompt": "2 + 2?", "answer": 4}, {"prompt": " 2 + 2? ", "answer": 5}, {"prompt": "3?", "answer": 4}]
    found = record_fingerprints(rows)
    assert found.shape == (3, 2) and found.dtype == torch.int64
    assert len({*found[:, 0].tolist()}) == 3, "other columns or spaces make another record"
    assert found[0, 1] == found[1, 1] != found[2, 1], "a prompt with spaces at its ends reads the same"
    assert torch.equal(found, record_fingerprints([dict(row) for row in rows]))
    chats = [[{"role": "user", "content": text}] for text in ("a", "a ", "b")]
    read = record_fingerprints([{"prompt": chat} for chat in chats])[:, 1]
    assert read[0] == read[1] != read[2]
    assert record_fingerprints([]).shape == (0, 2)


def test_prompts_keep_their_fingerprints() -> None:
    content = [{"type": "text", "text": " a b"}]
    called: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    rows: list[dict[str, Any]] = [
        {"prompt": "How many \ufb01elds?", "answer": "3"},
        {"prompt": [{"role": "user", "content": "Is 2 + 2?", "weight": 1}], "level": 2},
        {"prompt": [{"role": "user", "content": content}, called]},
        {"seed": 7, "wind": 0.5, "walls": [True, None]},
    ]
    # As of November 27, 2026; other numbers would say that all prompts of older runs differ.
    assert record_fingerprints(rows).tolist() == [
        [-8995184383177066169, 142368875915540],
        [5947796920097276606, 1287686030991069],
        [4887565774810917727, 790228138952846],
        [-6112563831598849027, 2543001153867868],
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CausalLMPolicy:
    policy = CausalLMPolicy(str(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32)))
    policy.load()
    return policy


CHAT = [{"role": "user", "content": "Add 1 23"}]


@pytest.mark.parametrize(
    "other",
    [
        [{"content": "Add 1 23", "role": "user"}],
        [{"role": "user", "content": "Add 1 23", "weight": 1, "name": None}],
        [{"role": "user", "content": [{"type": "text", "text": "Add 1 23"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "Add 1"}, {"type": "text", "text": " 23", "id": 4}]}],
    ],
    ids=["order of keys", "skipped fields", "a part", "two parts"],
)
def test_the_same_tokens_in_another_form_are_the_same_prompt(other: list[dict[str, Any]], tiny: CausalLMPolicy) -> None:
    """Under a template that reads parts, as those of vision-language models do."""
    ids = [tiny.read_prompts([prompt])["prompt_ids"].tolist() for prompt in (CHAT, _one_text(other))]
    assert ids[0] == ids[1]
    assert prompt_fingerprint({"prompt": CHAT}) == prompt_fingerprint({"prompt": other})
    asked = PromptGroups(torch.arange(2), {"prompt": [CHAT, other]})
    assert len({*identities(asked).tolist(), *record_fingerprints([{"prompt": other}])[:, 1].tolist()}) == 1


def _one_text(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chat whose messages' parts are written one after another."""
    texts = []
    for message in chat:
        content = message["content"]
        joined = content if isinstance(content, str) else "".join(part["text"] for part in content)
        texts.append({**message, "content": joined})
    return texts


@pytest.mark.parametrize("nothing", [[], {}, None])
@pytest.mark.parametrize("name", ["tools", "chat_template_kwargs"])
def test_no_variables_are_those_of_a_row_without_the_column(name: str, nothing: Any) -> None:
    assert prompt_fingerprint({"prompt": CHAT, name: nothing}) == prompt_fingerprint({"prompt": CHAT})


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": [{"role": "user", "content": "Add 12 3"}]},
        {"prompt": [{"role": "user", "content": "Add 1 23"}], "tools": [{"name": "add"}]},
        {"prompt": [{"role": "system", "content": "Add 1 23"}]},
    ],
    ids=["other numbers", "tools", "another role"],
)
def test_other_tokens_are_another_prompt(other: dict[str, Any]) -> None:
    assert prompt_fingerprint({"prompt": CHAT}) != prompt_fingerprint(other)


@pytest.mark.parametrize(
    "other",
    ["Is  2\n+ 2?", " Is 2 + 2? ", "Is 2 + 2\uff1f"],
    ids=["inner spaces", "outer spaces", "a letter's other form"],
)
def test_prompts_that_a_policy_may_read_as_one(other: str) -> None:
    found = record_fingerprints([{"prompt": "Is 2 + 2?"}, {"prompt": other}, {"prompt": "Is 2 - 2?"}])[:, 1]
    assert found[0] == found[1] != found[2]
    chat = {"role": "user", "content": "Is 2 + 2?"}
    found = record_fingerprints([{"prompt": [chat]}, {"prompt": [{**chat, "content": other, "weight": 1}]}])[:, 1]
    assert found[0] == found[1]


def test_images_and_other_values_of_libraries_count_by_content() -> None:
    def row(shade: int, day: int, text: str = "Which?") -> dict[str, Any]:
        image = Image.new("RGB", (3, 2), (shade, 0, 0))
        content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
        return {"prompt": [{"role": "user", "content": content}], "day": date(2026, 11, day), "x": np.arange(2000)}

    found = record_fingerprints([row(1, 1), row(1, 1), row(2, 1), row(1, 2), row(1, 1, " Which? ")])
    assert torch.equal(found[0], found[1]), "made anew, at other addresses"
    assert len({*found[1:, 0].tolist()}) == 4
    assert found[0, 1] == found[3, 1] == found[4, 1] != found[2, 1]


@pytest.mark.parametrize("initialized", [True, False], ids=["", "no __init__.py"])
@pytest.mark.parametrize(
    "statement",
    ["from package_of_this_test.helpers import half", "from .helpers import half", "from . import helpers"],
)
def test_modules_that_the_users_code_imports_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, initialized: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "package_of_this_test"
    package.mkdir()
    if initialized:
        (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def half(x):\n    return x / 2\n")
    (package / "rewards.py").write_text(f"import json\n{statement}\n")
    found = reads_of(["package_of_this_test.rewards.half"]).code
    assert {"package_of_this_test.helpers", "package_of_this_test.rewards"} <= found.keys()
    assert not any(name.startswith("json") for name in found) and "package_of_this_test" not in sys.modules
