import json

import torch

from lightning_cgrpo.datamodules.gsm8k import GSM8KDataModule
from lightning_cgrpo.tasks.gsm8k import chat
from tests.gsm8k_records import write_records


def everything(source):
    return source.groups(torch.arange(len(source)))


def test_columns(tmp_path):
    folder = write_records(tmp_path / "records", test=4)
    groups = everything(GSM8KDataModule(str(folder), val_prompts=0).source("test"))
    assert groups.columns == {
        "prompt": [chat(f"test: Tom has {n} apples, and buys 4.") for n in range(4)],
        "answer": ["4", "5", "6", "7"],
        "completion": [f"<think>{n} + 4 = {n + 4}</think>\n<answer>{n + 4}</answer>" for n in range(4)],
    }


def test_a_prompt_of_ones_own_and_clusters(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"asked": f"How many are {n} + 4?", "answer": f"#### {n + 4}", "topic": n // 2} for n in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = GSM8KDataModule(
        str(path), val_prompts=0, prompt_column="asked", system_prompt="In French.", cluster="topic", subset=None
    )
    groups = everything(data.source("train"))
    assert groups.columns["prompt"][1] == chat("How many are 1 + 4?", "In French.")
    assert groups.clusters == ["0", "0", "1", "1"]


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
