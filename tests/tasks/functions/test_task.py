import asyncio
import math
import sys
import threading
import types

import numpy as np
import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.tasks.functions import FunctionTask
from lightning_cgrpo.tasks.task import Task

CHAT = [{"role": "user", "content": "Hi"}]


def make_prompts(prompts=("Once", "Twice"), **columns):
    return PromptGroups(torch.arange(len(prompts)), {"prompt": list(prompts), **columns})


def make_rollouts(batch=2):
    """Three answers a prompt, of 1 + the prompt's row tokens, which are 10 * row + column of the answer."""
    lengths = torch.arange(1, batch + 1)[:, None].expand(batch, 3)
    mask = torch.arange(batch) < lengths[..., None]
    actions = (10 * torch.arange(batch)[:, None] + torch.arange(3))[..., None] * mask.long()
    text = [[f"{row}{column}" for column in range(3)] for row in range(batch)]
    truncated = torch.zeros(batch, 3, dtype=torch.bool)
    truncated[-1:, -1] = True
    return Rollouts(actions, mask, {}, info={"text": text, "truncated": truncated})


def value(function, kind="any", prompts=None, rollouts=None):
    task = FunctionTask({"it": function}, kinds={"it": kind})
    return task.score(prompts or make_prompts(), rollouts or make_rollouts())["it"]


def test_functions_get_what_trl_gives_them():
    given = []

    def spy(prompts, completions, completion_ids, **columns):
        given.append((prompts, completions, completion_ids, columns))
        return [float(row) for row in range(len(prompts))]

    prompts = make_prompts(["Once", CHAT], answer=["a", None], level=torch.tensor([1, 2]))
    signal = value(spy, prompts=prompts)
    ((repeated, completions, ids, columns),) = given
    assert repeated == ["Once"] * 3 + [CHAT] * 3
    assert completions == ["00", "01", "02", *([{"role": "assistant", "content": text}] for text in ("10", "11", "12"))]
    assert ids == [[0], [1], [2], [10, 10], [11, 11], [12, 12]]
    assert columns.keys() == {"answer", "level", "trainer_state", "log_extra", "log_metric"}
    assert (columns["answer"], columns["level"]) == (["a"] * 3 + [None] * 3, [1] * 3 + [2] * 3)
    assert signal.value.dtype == torch.float32
    assert signal.value.tolist() == [[0, 1, 2], [3, 4, 5]] and signal.applicable.all()


def test_functions_may_change_their_arguments():
    def change(prompts, tags):
        return [len(prompt.pop()) + len(of_answer.pop()) for prompt, of_answer in zip(prompts, tags, strict=True)]

    prompts = make_prompts([CHAT, CHAT], tags=[["a"], ["b"]])
    assert value(change, prompts=prompts).value.tolist() == [[3] * 3] * 2
    assert prompts.columns == {"prompt": [[{"role": "user", "content": "Hi"}]] * 2, "tags": [["a"], ["b"]]}


def test_a_function_without_kwargs_gets_what_it_names():
    assert value(lambda completions: [float(text) for text in completions]).value.tolist() == [[0, 1, 2], [10, 11, 12]]
    assert value(lambda *, level=7, **_: [level] * 6).value.unique().tolist() == [7]
    assert value(lambda prompts, level: level, prompts=make_prompts(level=[1, 2])).value.tolist() == [[1] * 3, [2] * 3]


def test_the_built_in_signals():
    task = FunctionTask({}, max_completion_tokens=4)
    assert task.signals == {"length": "number", "tokens": "number", "truncated": "indicator"}
    signals = task.score(make_prompts(), make_rollouts())
    assert isinstance(task, Task) and signals.keys() == task.signals.keys()
    assert signals["tokens"].value.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert signals["truncated"].value.tolist() == [[0, 0, 0], [0, 0, 1]]
    assert signals["length"].value.tolist() == [[-0.25] * 3, [-0.5, -0.5, -1]]
    assert "length" not in FunctionTask({}).score(make_prompts(), make_rollouts())


def test_none_does_not_apply_and_nan_is_a_fault():
    signal = value(lambda prompts: [1.0, None, math.nan, 0.0, None, 2])
    assert signal.applicable.tolist() == [[True, False, True], [True, False, True]]
    torch.testing.assert_close(signal.value, torch.tensor([[1, 0, math.nan], [0, 0, 2]]), equal_nan=True)
    count, opportunities = value(lambda prompts: [1.0, None, 0.0, 0.0, None, 1], "indicator").counts()
    assert count.sum() == 2 and opportunities.sum() == 4


@pytest.mark.parametrize("level", [1e7, -1e7, 3e5, 1e9])
@pytest.mark.parametrize("last", [0.75, None, math.nan])
def test_rewards_far_from_0_keep_their_differences(level, last):
    """Advantages are those of the differences alone, which float32 would round away or bend."""
    near = [0.25, -0.25, -0.25, -0.25, 0.5, last]
    far = [None if number is None else number + level for number in near]

    def advantages(values):
        signals, _ = isolate_faults({"m": value(lambda completions: values)})
        statistics = group_statistics(Objective("m").components(signals))
        return ScalarizedAdvantages(scale="group")(None, statistics, torch.ones(1))

    torch.testing.assert_close(advantages(far).double(), advantages(near).double(), rtol=1e-6, atol=1e-6)


def test_a_far_group_does_not_sharpen_the_others():
    """Rounding of float64 in another group, or of float32 in another component, tells no answers apart."""
    far = [1e7, 1e7 + 0.25, 1e7 + 0.5]
    residue = [sum([0.1] * 1000), 100.0, 100.0]
    signals = {"m": value(lambda completions: far + residue)}
    third = torch.tensor([[0.1, 0.2, 0.3], [1 / 3, 1 / 3, 1 / 3 * (1 + 2e-7)]])
    signals["n"] = Signal(third)
    statistics = group_statistics(Objective({"m": 1.0, "n": 1.0}).components(signals))
    assert (statistics.std > 0).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize(
    "values",
    [
        [0.1, 0.7, 0.3, 0.1 + 0.2, 0.3, 0.3],  # residue of float64
        [1e7 + 1, 1e7, 1e7, 5e3, 5e3 + 0.5, 5e3],
        [1e7 + 0.25] * 6,
        [1e300, 0.0, 1.0, 1e300, 1e300, None],  # a fault, as infinity
        [float(torch.tensor(1 / 3)), 0.5, 0.2, None, None, math.nan],
    ],
)
def test_usual_rewards_are_float32(values):
    assert value(lambda completions: values).value.dtype is torch.float32


@pytest.mark.parametrize(
    "output", [[True] * 6, (1,) * 6, torch.ones(6), np.ones(6), [np.float64(1)] * 6, [torch.tensor(1.0)] * 6]
)
def test_numbers_of_any_kind(output):
    assert value(lambda prompts: output).value.tolist() == [[1] * 3] * 2


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ([1.0] * 5, "a list of 6 numbers, one per completion, but got 5"),
        (1.0, "but got a float"),
        (None, "but got a NoneType"),
        ("123456", "but got a str"),
        ([1.0, "1", 1, 1, 1, 1], "numbers or None, but got '1' for completion 1"),
    ],
)
def test_other_outputs_are_refused(output, problem):
    with pytest.raises(UserError, match=f"^Expected the function of signal 'it' to return .*{problem}"):
        value(lambda prompts: output)


def test_asynchronous_functions_run_at_once():
    # Each waits for the other, and for the ordinary function after them: one by one they would wait forever.
    meeting = threading.Barrier(3, timeout=20)

    async def waits(prompts):
        await asyncio.get_running_loop().run_in_executor(None, meeting.wait)
        return [1.0] * len(prompts)

    def ordinary(prompts):
        meeting.wait()
        return [0.0] * len(prompts)

    task = FunctionTask({"a": waits, "b": waits, "c": ordinary})
    signals = task.score(make_prompts(), make_rollouts())
    assert [signals[name].value.unique().item() for name in "abc"] == [1, 1, 0]
    assert list(signals)[:3] == ["a", "b", "c"]


def test_asynchronous_functions_run_inside_a_running_loop_and_keep_theirs():
    loops = []

    async def spy(prompts):
        loops.append(asyncio.get_running_loop())
        return [1.0] * len(prompts)

    async def notebook():
        for _ in range(2):
            value(spy)

    asyncio.run(notebook())
    assert len(loops) == 2 and loops[0] is loops[1]


def test_what_a_function_requires_must_be_there():
    words = r"signal 'it' to ask for some of \['prompts', .*'answer', .*\].* requires \['anwser'\]"
    with pytest.raises(UserError, match=words):
        value(lambda completions, anwser, **_: [], prompts=make_prompts(answer=["a", "b"]))


def test_a_process_without_prompts_calls_nothing():
    task = FunctionTask({"it": lambda prompts: 1 / 0})
    signals = task.score(make_prompts([]), make_rollouts(0))
    assert all(signal.value.shape == (0, 3) for signal in signals.values())


@pytest.fixture
def my_rewards(monkeypatch):
    module = types.ModuleType("my_rewards")
    module.brief = lambda completions: [float(len(text) < 3) for text in completions]
    module.Never = type("Never", (), {"__call__": lambda self, prompts: [0.0] * len(prompts)})
    module.number = 3
    monkeypatch.setitem(sys.modules, "my_rewards", module)


def test_a_string_is_an_import_path(my_rewards):
    assert value("my_rewards.brief", "indicator").value.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ({"it": "my_rewards.breif"}, "signal 'it' to be .*no attribute 'breif'.*Did you mean 'brief'"),
        ({"it": "brief"}, "signal 'it' to be .*can't be imported"),
        ({"it": "my_rewards.number"}, "signal 'it' to be .*a function, but got 'my_rewards.number', which is 3"),
        ({"it": "org/reward-model"}, r"signal 'it' to be .*RewardModel, init_args: \{model: org/reward-model\}"),
        ([len], r".*functions by name, but got a list, try \{'brief': brief\}"),  # as in TRL, by their `__name__`
    ],
)
def test_what_is_no_function_with_a_name_is_refused(my_rewards, functions, problem):
    with pytest.raises(UserError, match=f"^Expected {problem}"):
        FunctionTask(functions)
