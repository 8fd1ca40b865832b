"""Fingerprints: equal for equal content, whatever the layout; different for what changes a run."""

import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_cgrpo.core.manifest.fingerprints import prompt_fingerprints
from lightning_cgrpo.core.manifest.reads import code_fingerprints

CODE = '"""Rewards."""\n\ndef brief(texts):\n    """Short."""\n    return [-len(t) for t in texts]  # a comment\n'


def test_prompts() -> None:
    rows = [{"prompt": "2 + 2?", "answer": 4}, {"prompt": " 2 + 2? ", "answer": 5}, {"prompt": "3?", "answer": 4}]
    found = prompt_fingerprints(rows)
    assert found.shape == (3, 2) and found.dtype == torch.int64
    assert len({*found[:, 0].tolist()}) == 3, "other columns or spaces make another record"
    assert found[0, 1] == found[1, 1] != found[2, 1], "a prompt with spaces at its ends reads the same"
    assert torch.equal(found, prompt_fingerprints([dict(row) for row in rows]))
    chats = [[{"role": "user", "content": text}] for text in ("a", "a ", "b")]
    read = prompt_fingerprints([{"prompt": chat} for chat in chats])[:, 1]
    assert read[0] == read[1] != read[2]
    assert prompt_fingerprints([]).shape == (0, 2)


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
    assert prompt_fingerprints(rows).tolist() == [
        [-8995184383177066169, -7223199595759282130],
        [5947796920097276606, 7259613659649345744],
        [4887565774810917727, 1978204534000878503],
        [-6112563831598849027, 5181429051052614115],
    ]


@pytest.mark.parametrize(
    "other",
    ["Is  2\n+ 2?", " Is 2 + 2? ", "Is 2 + 2\uff1f"],
    ids=["inner spaces", "outer spaces", "a letter's other form"],
)
def test_prompts_that_a_policy_may_read_as_one(other: str) -> None:
    found = prompt_fingerprints([{"prompt": "Is 2 + 2?"}, {"prompt": other}, {"prompt": "Is 2 - 2?"}])[:, 1]
    assert found[0] == found[1] != found[2]
    chat = {"role": "user", "content": "Is 2 + 2?"}
    found = prompt_fingerprints([{"prompt": [chat]}, {"prompt": [{**chat, "content": other, "weight": 1}]}])[:, 1]
    assert found[0] == found[1]


def test_images_and_other_values_of_libraries_count_by_content() -> None:
    def row(shade: int, day: int, text: str = "Which?") -> dict[str, Any]:
        image = Image.new("RGB", (3, 2), (shade, 0, 0))
        content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
        return {"prompt": [{"role": "user", "content": content}], "day": date(2026, 11, day), "x": np.arange(2000)}

    found = prompt_fingerprints([row(1, 1), row(1, 1), row(2, 1), row(1, 2), row(1, 1, " Which? ")])
    assert torch.equal(found[0], found[1]), "made anew, at other addresses"
    assert len({*found[1:, 0].tolist()}) == 4
    assert found[0, 1] == found[3, 1] == found[4, 1] != found[2, 1]


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (("a comment", "another comment"), False),
        (('"""Short."""', '"""Longer words."""'), False),
        (("texts", "answers"), True),
        (("-len(t)", "-2 * len(t)"), True),
    ],
)
def test_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], differs: bool) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "rewards_of_this_test.py"
    file.write_text(CODE)
    before = code_fingerprints(["rewards_of_this_test.brief", "torch.nn.Linear", "no text", "lightning_cgrpo.Task"])
    assert list(before) == ["rewards_of_this_test"]
    file.write_text(CODE.replace(*change))
    assert (code_fingerprints(["rewards_of_this_test.brief"]) != before) == differs


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
    found = code_fingerprints(["package_of_this_test.rewards.half"])
    assert {"package_of_this_test.helpers", "package_of_this_test.rewards"} <= found.keys()
    assert not any(name.startswith("json") for name in found) and "package_of_this_test" not in sys.modules
