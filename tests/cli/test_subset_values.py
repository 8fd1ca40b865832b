"""`by: COLUMN` becomes the column's values in the training data, before a model is made."""

import json
from pathlib import Path

import pytest

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.errors import UserError

ROOT = Path(__file__).parents[2]


def read(*arguments: str, by: str) -> dict:
    given = ["-c", str(ROOT / "examples/constraints/subsets.yaml"), *arguments]
    config, _ = read_arguments("fit", [*given, f"--model.objective.constraints.correctness.by={by}"])
    return config["model"]["init_args"]["objective"]["constraints"]


def of_file(path: Path, rows: list[dict]) -> list[str]:
    path.write_text("".join(json.dumps({"prompt": "a", "answer": 1, **row}) + "\n" for row in rows))
    return ["--data=PromptDataModule", f"--data.path={path}"]


def test_the_values_of_generated_problems_are_read() -> None:
    """In their order, and as numbers."""
    assert read(by="steps")["correctness"]["by"] == {"steps": [1, 2, 3]}


def test_declared_values_stay() -> None:
    assert read(by="{steps: [2]}")["correctness"]["by"] == {"steps": [2]}


def test_all_rows_of_a_file_are_read(tmp_path: Path) -> None:
    rows = [{"language": "en"}] * 300 + [{"language": "fr"}]
    found = read(*of_file(tmp_path / "train.jsonl", rows), by="language")
    assert found["correctness"]["by"] == {"language": ["en", "fr"]}


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("stepz", r"but got 'stepz'. Did you mean 'steps'\?"),
        ("prompt", r"at most 32 values, but 'prompt' has 256, try by: {prompt: \[VALUE, ...\]}."),
    ],
)
def test_refusals(by: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(by=by)
    assert "\n" not in str(caught.value)
