"""Generated word problems: GSM8K's format, arithmetic that holds, and splits that share no question."""

import re
from itertools import pairwise

import pytest

from lightning_cgrpo.tasks.gsm8k.word_problems import LARGEST, SPLITS, problem_at

PROBLEMS = {split: [problem_at(0, split, index) for index in range(400)] for split in SPLITS}
TRAIN = PROBLEMS["train"]


def test_it_is_the_same_for_the_same_numbers():
    again = [problem_at(0, "train", index) for index in reversed(range(400))]
    assert again[::-1] == TRAIN
    for other in ([problem_at(1, "train", index) for index in range(400)], PROBLEMS["test"]):
        assert sum(a == b for a, b in zip(TRAIN, other, strict=True)) < 4


@pytest.mark.slow
def test_splits_share_no_question_whatever_the_seeds():
    numbers = [(seed, index) for seed in (0, 1) for index in range(300)]
    questions = {split: {problem_at(seed, split, index).question for seed, index in numbers} for split in SPLITS}
    assert len(set.union(*questions.values())) == sum(map(len, questions.values()))
    assert all(len(found) > 590 for found in questions.values()), "hardly any repeats"


def test_steps_are_small_arithmetic_that_goes_on_from_the_last():
    seen = set()
    for drawn in TRAIN:
        assert 1 <= len(drawn.steps) <= 3
        seen |= {(len(drawn.steps), step.operation) for step in drawn.steps}
        for step in drawn.steps:
            assert eval(f"{step.left} {step.operation} {step.right}") == step.result
            assert all(0 < number <= LARGEST for number in (step.left, step.right, step.result))
        assert all(before.result == after.left for before, after in pairwise(drawn.steps))
    assert seen == {(count, operation) for count in (1, 2, 3) for operation in "+-*"}


def test_the_question_gives_the_numbers_and_asks_for_the_last_owner():
    for drawn in TRAIN:
        first, *rest = drawn.steps
        given = [int(number) for number in re.findall(r"\d+", drawn.question)]
        assert given == [first.left, first.right, *(step.right for step in rest)]
        assert drawn.steps[-1].name in drawn.question.split(".")[-1]
