import json
from itertools import chain

import pytest
import torch

from lightning_cgrpo import prompt_source
from lightning_cgrpo.datamodules.gsm8k import GSM8KDataModule
from lightning_cgrpo.records import RecordError
from lightning_cgrpo.rollout import Rollouts
from lightning_cgrpo.tasks.gsm8k import GSM8KTask, chat


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


def test_what_it_yields_can_be_scored(folder):
    data = GSM8KDataModule(str(folder), prompts_per_update=5, val_prompts=5)
    for groups in data.train_dataloader():
        texts = [[f"<think></think>\n<answer>{answer}</answer>"] * 2 for answer in groups.columns["answer"]]
        mask = torch.ones(len(groups), 2, 3, dtype=torch.bool)
        rollouts = Rollouts(mask.long(), mask, {}, info={"text": texts, "truncated": ~mask.any(-1)})
        signals = GSM8KTask(max_completion_tokens=3).score(groups, rollouts)
        assert all(signals[name].value.all() for name in ("correctness", "format", "integer"))


@pytest.mark.parametrize(
    "row", [{"question": "1?"}, {"question": "1?", "answer": "1"}, {"question": "1?", "answer": "1\n#### "}]
)
def test_a_record_without_gold_is_named_before_training(folder, row):
    write(folder / "train.jsonl", [{"question": "1?", "answer": "#### 1"}, row])
    with pytest.raises(RecordError, match=r"train\.jsonl:2: Expected .*answer"):
        GSM8KDataModule(str(folder), val_prompts=0).setup("fit")


def test_training_questions_in_a_test(folder):
    data = GSM8KDataModule(str(folder), val_prompts=5, test_train_prompts=3)
    tested, trained = (list(loader) for loader in data.test_dataloader())
    assert [groups.columns["answer"] for groups in tested] == [["1", "2", "3", "4"]]
    # Every fourth is held out, from the first on: 0, 4 ... 16 of 20.
    assert [groups.columns["answer"] for groups in trained] == [["2", "8", "15"]]


def test_order_depends_on_the_seed_and_the_pass_alone(folder, monkeypatch):
    def batches(seed, updates=0):
        data = GSM8KDataModule(str(folder), prompts_per_update=5, val_prompts=5, seed=seed)
        monkeypatch.setattr(data, "_updates_done", lambda: updates)
        return [groups.index.tolist() for groups in data.train_dataloader()]

    assert batches(0) == batches(0) != batches(1)
    assert batches(0, 1) == batches(0)[1:]
    assert batches(0, 3) != batches(0) and sorted(chain(*batches(0, 3))) == list(range(15))


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_each_update(folder, monkeypatch, size):
    def batches(rank, size):
        monkeypatch.setattr(prompt_source, "world", lambda: (rank, size))
        return [
            groups.columns["answer"] for groups in GSM8KDataModule(str(folder), 8, val_prompts=4).train_dataloader()
        ]

    whole = batches(0, 1)
    shares = [batches(rank, size) for rank in range(size)]
    assert len(whole) == 2 and [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole


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
