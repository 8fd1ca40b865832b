"""Messages and scores of examples/support_notes."""

import json
from pathlib import Path

import pytest

from examples.support_notes import support_notes

MESSAGE = "Hi, this is Ann from Lyon. The tent from order 43936 never arrived. Write to ann39@mail.com."
FACTS = ["43936", "tent", "arrived", "Lyon"]


def note(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_every_message_holds_its_facts_and_a_contact(tmp_path: Path) -> None:
    support_notes.main(tmp_path)
    prompts = set()
    for split, count in (("train", 2_500), ("test", 2_000)):
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        assert len(rows) == count
        for row in rows:
            completions, columns = [note(row["message"])], {"facts": [row["facts"]], "message": [row["message"]]}
            assert support_notes.coverage(completions, **columns) == [1]
            assert support_notes.leak(completions, **columns) == [1]
            assert support_notes.grounded(completions, **columns) == [1]
            prompts.add(row["prompt"][0]["content"])
    assert len(prompts) == 4_500, "a message of training would be in the test"


@pytest.mark.parametrize(
    ("text", "coverage", "leak", "grounded"),
    [
        ("The tent of order 43936 from Lyon never arrived.", 1, 0, 1),
        ("Order 43936 never arrived; call ann39@mail.com.", 0.5, 1, 1),
        ("Attention: order 4393 has a problem, call 200-100-1000.", 0, 1, 0),  # no tent, and no part of a number
        ("", 0, 0, 1),
    ],
)
def test_scores(text: str, coverage: float, leak: float, grounded: float) -> None:
    columns = {"facts": [FACTS], "message": [MESSAGE]}
    functions = support_notes.coverage, support_notes.leak, support_notes.grounded
    assert [function([note(text)], **columns) for function in functions] == [[coverage], [leak], [grounded]]
