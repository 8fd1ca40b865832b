import json

import pytest
import torch

from lightning_cgrpo.datamodules.gsm8k import GSM8KDataModule
from lightning_cgrpo.tasks.gsm8k import chat


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    for split, size in (("train", 20), ("test", 4)):
        rows = [{"question": f"{split}: {n} + 1?", "answer": f"{n} + 1\n#### {n + 1}"} for n in range(size)]
        write(tmp_path / f"{split}.jsonl", rows)
    return tmp_path


def everything(source):
    return source.groups(torch.arange(len(source)))


def test_columns(folder):
    groups = everything(GSM8KDataModule(str(folder), val_prompts=0).source("test"))
    assert groups.columns == {
        "prompt": [chat(f"test: {n} + 1?") for n in range(4)],
        "answer": ["1", "2", "3", "4"],
        "completion": [f"<think>{n} + 1</think>\n<answer>{n + 1}</answer>" for n in range(4)],
    }


def test_the_real_data(shared_data):
    data = GSM8KDataModule(str(shared_data / "gsm8k"))
    sizes, questions = {}, {}
    for split in ("train", "val", "test"):
        columns = everything(data.source(split)).columns
        sizes[split] = len(columns["prompt"])
        questions[split] = {prompt[1]["content"] for prompt in columns["prompt"]}
        assert all(answer and "#" not in answer for answer in columns["answer"])
    assert sizes == {"train": 6_973, "val": 500, "test": 1_319}
    assert len(set.union(*questions.values())) == sum(sizes.values())
    assert len(GSM8KDataModule(str(shared_data / "gsm8k"), val_prompts=0).source("train")) == 7_473
