"""Demonstrations: the shares that were asked for, and flaws that the scores see as such."""

import json

import numpy as np
import pytest

from lightning_cgrpo.tasks.gsm8k import score_completion
from lightning_cgrpo.tasks.gsm8k.demonstrations import CLEAN, Manners, demonstrate, gold_completion
from lightning_cgrpo.tasks.gsm8k.word_problems import problem_at

PROBLEMS = [problem_at(0, "train", index) for index in range(1000)]
PERFECT = Manners(short=0.0, none=0.0, damaged=0.0, unclean=0.0)


def demonstrations(manners, seed=0):
    draw = np.random.default_rng(seed)
    return [demonstrate(drawn, manners, draw) for drawn in PROBLEMS]


def rates(texts):
    scores = [score_completion(text, str(p.result)) for text, p in zip(texts, PROBLEMS, strict=True)]
    return {name: np.mean([score[name] for score in scores]) for name in scores[0]}


def test_flawless_ones_satisfy_everything():
    for manners in (CLEAN, PERFECT, Manners(none=1.0, short=0.0, damaged=0.0, unclean=0.0)):
        assert rates(demonstrations(manners)) == {"correctness": 1, "format": 1, "integer": 1}


def test_shares():
    texts = demonstrations(Manners(damaged=0.0, unclean=0.0))
    empty = np.mean(["<think></think>" in text for text in texts])
    verbose = np.mean(["So now" in text for text in texts])
    assert empty == pytest.approx(0.18, abs=0.04)
    assert verbose == pytest.approx(0.60, abs=0.05)


@pytest.mark.parametrize(
    ("manners", "signal"),
    [(Manners(damaged=1.0, unclean=0.0), "format"), (Manners(damaged=0.0, unclean=1.0), "integer")],
)
def test_a_flaw_is_seen_by_its_signal_alone(manners, signal):
    """Every damage breaks the format and every unclean answer is no integer; both are right all the same."""
    assert rates(demonstrations(manners)) == {"correctness": 1, "format": 1, "integer": 1, signal: 0}


def test_gold_completions_of_the_real_data(shared_data):
    """All 8,792 solutions in the asked format are right, well-formed and integers, without annotations."""
    for split in ("train", "test"):
        for line in (shared_data / "gsm8k" / f"{split}.jsonl").open(encoding="utf-8"):
            answer = json.loads(line)["answer"]
            text = gold_completion(answer)
            assert set(score_completion(text, answer).values()) == {1.0}, line
            assert "<<" not in text and "####" not in text
