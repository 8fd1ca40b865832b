"""Sentences and scores of examples/released_model."""

import json
from pathlib import Path

from examples.released_model import extraction, prepare

QUESTIONS = [
    "Weng earns $12 an hour for babysitting. Yesterday, she did 50 minutes.",
    "Tom has 3 pears and 4 apples. How many fruits?",  # two numbers
    "Each pear costs 3 dollars. What do 4 cost?",  # no name
    "Ann ate 1/2 of a cake. How much is left?",  # no whole number
]
RIGHT = '{"name": "Weng", "number": 12}'


def test_sentences_have_a_name_and_a_number(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"question": q}) + "\n" for q in QUESTIONS))
    prepare.main(tmp_path, tmp_path / "data")
    [row] = [json.loads(line) for line in (tmp_path / "data/test.jsonl").read_text().splitlines()]
    assert (row["name"], row["number"]) == ("Weng", 12)
    assert row["prompt"][0]["content"].endswith("\n\nWeng earns $12 an hour for babysitting.")


def test_scores() -> None:
    texts = [RIGHT, RIGHT + ".", '{"name": "Weng"}', '{"name": "Weng", "number": "12"}', "[1]"]
    texts.append('{"name": 1, "number": []}')
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert extraction.valid(completions) == [1, 0, 0, 1, 0, 1]
    assert extraction.fields(completions, ["Weng"] * 6, [12] * 6) == [1, 0, 0, 0.5, 0, 0]
