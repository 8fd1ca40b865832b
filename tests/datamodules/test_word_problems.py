"""Word problems and their demonstrations as prompt groups."""

import torch

from lightning_cgrpo.datamodules import WordProblemDemonstrationsDataModule, WordProblemsDataModule
from lightning_cgrpo.tasks.gsm8k import score_completion
from lightning_cgrpo.tasks.gsm8k.word_problems import problem_at


def everything(source):
    return source.groups(torch.arange(len(source)))


def test_columns():
    groups = everything(WordProblemsDataModule(seed=3, val_prompts=5).source("val"))
    problems = [problem_at(3, "val", index) for index in range(5)]
    assert groups.columns == {
        "prompt": [f"{p.question}\n" for p in problems],
        "answer": [str(p.result) for p in problems],
        "steps": [len(p.steps) for p in problems],
    }


def demonstrations(**changes):
    options = {"prompts_per_update": 10, "train_prompts": 200}
    return WordProblemDemonstrationsDataModule(**{**options, **changes})


def test_flawless_ones_come_first():
    batches = list(demonstrations().train_dataloader())
    assert [number for groups in batches for number in groups.index.tolist()] == list(range(200)), "in their order"
    perfect = []
    for groups in batches:
        pairs = zip(groups.columns["completion"], groups.columns["answer"], strict=True)
        perfect += [all(score_completion(*texts).values()) for texts in pairs]
    assert all(perfect[:100]) and 50 < sum(perfect[100:]) < 95


def test_a_demonstration_follows_from_its_index():
    def texts(**changes):
        batches = demonstrations(**changes).train_dataloader()
        return [text for groups in batches for text in groups.columns["completion"]]

    assert texts() == texts(prompts_per_update=4) != texts(seed=1)
