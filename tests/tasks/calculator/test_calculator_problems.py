"""Problems for a calculator: right demonstrations in the shares of their manners, with true replies."""

import numpy as np
import pytest
import torch

from lightning_cgrpo.datamodules import CalculatorDataModule
from lightning_cgrpo.samplers.conversation.tools import InvalidCallError, call_tool
from lightning_cgrpo.tasks.calculator import calculator, correct
from lightning_cgrpo.tasks.calculator.problems import Manners, demonstrate, draw_problem


def test_the_calculator_calculates():
    draw = np.random.default_rng(0)
    for _ in range(100):
        a, b, c = draw.integers(0, 1000, 3)
        assert calculator(f"{a} + {b} - {c}") == str(a + b - c)
        assert calculator(f"{a} - {b} + {c}") == str(a - b + c)
    for wrong in ("", "1 +", "+ 1", "1+1", "2 * 3", "1 + + 1", "1 + 1 ", "a"):
        with pytest.raises(ValueError, match="cannot read"):
            calculator(wrong)


@pytest.mark.parametrize(
    ("last", "value"),
    [
        ({"content": "So now Tom has 73 apples."}, 1.0),
        ({"content": "73"}, 1.0),
        ({"content": "7 and 73"}, 1.0),
        ({"content": "73 or 7"}, 0.0),
        ({"content": "-73"}, 0.0),
        ({"content": "173"}, 0.0),
        ({"content": ""}, 0.0),
        ({"content": "73", "tool_calls": [{}]}, 0.0),
    ],
)
def test_the_last_integer_of_the_last_turn_is_the_answer(last, value):
    assert correct([[{"content": "73"}, last]], ["73"]) == [value]


def test_demonstrations_are_right_and_their_replies_the_calculators():
    draw = np.random.default_rng(0)
    found = {"direct": 0, "verbose": 0, "stepwise": 0, "invalid": 0}
    two_steps = 0
    for _ in range(2000):
        solved = draw_problem(draw)
        assert all(10 <= n <= 99 for s in solved.steps for n in (s.left, s.right, s.result))
        chat = demonstrate(solved, Manners(), draw)
        assert correct([chat], [str(solved.result)]) == [1.0]
        calls = [m["tool_calls"][0]["function"] for m in chat if "tool_calls" in m]
        replies = [m["content"] for m in chat if m["role"] == "tool"]
        results = []
        for call in calls:
            try:
                results.append(call_tool({"calculator": calculator}, call, None))
            except InvalidCallError as error:
                results.append(str({"error": str(error)}))
        assert replies == results
        found["direct"] += not calls
        found["verbose"] += chat[-1]["content"].startswith("So")
        found["invalid"] += bool(results) and "error" in results[0]
        if len(solved.steps) == 2 and calls:
            two_steps += 1
            found["stepwise"] += len([r for r in results if "error" not in r]) == 2
    shares = [found["direct"] / 2000, found["verbose"] / 2000, found["stepwise"] / two_steps]
    assert shares == pytest.approx([0.25, 0.5, 0.5], abs=0.05)
    assert found["invalid"] / (2000 - found["direct"]) == pytest.approx(0.1, abs=0.03)


def test_splits_share_no_question_and_repeat():
    data = CalculatorDataModule(seed=1)
    asked = {}
    for split in ("train", "val", "test"):
        groups = data.source(split).groups(torch.arange(250))
        again = data.source(split).groups(torch.arange(240, 250))
        assert groups.columns["completion"][240:] == again.columns["completion"]
        asked[split] = {chat[0]["content"] for chat in groups.columns["prompt"]}
    assert len(set.union(*asked.values())) == sum(map(len, asked.values()))
