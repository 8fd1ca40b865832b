import pytest
import torch

from lightning_cgrpo.core.prompts.records import Record, RecordError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.tasks.gsm8k import GSM8KTask, chat
from lightning_cgrpo.tasks.gsm8k.prompts import columns
from lightning_cgrpo.tasks.task import Task

GOOD = "<think>a</think>\n<answer>7</answer>"


@pytest.fixture
def prompts():
    return PromptGroups(torch.tensor([3, 4]), {"answer": ["So.\n#### 7", "1,234"]})


@pytest.fixture
def rollouts():
    lengths = torch.tensor([[4, 1, 3], [2, 4, 4]])
    mask = torch.arange(4) < lengths[..., None]
    text = [[GOOD, "7", "<answer>8</answer>"], ["<answer>1234</answer>", GOOD, "<answer>$1,234"]]
    truncated = torch.tensor([[False, False, True], [False, False, True]])
    return Rollouts(mask.long(), mask, {}, info={"text": text, "truncated": truncated})


def test_scores(prompts, rollouts):
    task = GSM8KTask(max_completion_tokens=4)
    signals = task.score(prompts, rollouts)
    assert isinstance(task, Task) and signals.keys() == task.signals.keys()
    expected = {
        "correctness": [[1, 0, 0], [1, 0, 1]],
        "format": [[1, 0, 0], [0, 1, 0]],
        "integer": [[1, 0, 1], [1, 1, 0]],
        "tokens": [[4, 1, 3], [2, 4, 4]],
        "truncated": [[0, 0, 1], [0, 0, 1]],
        # The third of the first prompt counts as 4 of 4, being truncated.
        "length": [[-1, -0.25, -1], [-0.5, -1, -1]],
    }
    for name, values in expected.items():
        signal = signals[name]
        torch.testing.assert_close(signal.value, torch.tensor(values, dtype=torch.float32), rtol=0, atol=0)
        if task.signals[name] == "indicator":
            assert [count.sum().item() for count in signal.counts()] == [torch.tensor(values).sum().item(), 6]


def test_profile(prompts, rollouts):
    signals = GSM8KTask(max_completion_tokens=4, profile="authors").score(prompts, rollouts)
    assert signals["correctness"].value.tolist() == [[1, 1, 0], [0, 0, 0]]


def test_prompts():
    system, user = chat("1 + 1?")
    assert system["role"] == "system" and user == {"role": "user", "content": "1 + 1?"}
    for tag in ("<think>", "</think>\n<answer>", "</answer>"):
        assert tag in system["content"]
    record = Record({"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"}, "a.jsonl:3")
    completion = "<think>1 + 1 = 2</think>\n<answer>2</answer>"
    assert columns(record) == {"prompt": chat("1 + 1?"), "answer": "2", "completion": completion}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"question": "1 + 1?"}, "Expected a field 'answer'"),
        ({"question": "1 + 1?", "answer": "2"}, "to end in '#### <number>', but got ...'2'"),
        ({"question": "1 + 1?", "answer": "#### two"}, "a number"),
    ],
)
def test_a_record_without_question_or_gold_is_named(values, problem):
    with pytest.raises(RecordError, match=r"^a\.jsonl:3: .*" + problem):
        columns(Record(values, "a.jsonl:3"))
