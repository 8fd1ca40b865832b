"""What a training does with faults at run time, one by one; docs/reliability.md has the table."""

import asyncio
import copy
import errno
import functools
import json
import math
import threading
import warnings

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    Optimization,
    SupervisedFineTuning,
)
from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.token_choice import TokenChoice
from lightning_cgrpo.tasks.functions.calls import call_functions
from tests.memory import Memory
from tests.quiet import quiet_trainer

GROUP, PROMPTS = 4, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    make_tiny_model(folder / "model", hidden_size=32, layers=1)
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"What is {n} + {n}?"}) + "\n" for n in (1, 2, 3, 4))
    )
    return folder


@functools.cache
def policy_of(folder):
    policy = CausalLMPolicy(str(folder / "model"))
    policy.load()
    return policy


def train(folder, reward, even=None, updates=2, prompts="prompts.jsonl", kind="indicator", length=6, **task):
    """Constrained GRPO on two functions: a reward, and an indicator with a rate."""
    module = ConstrainedGRPO(
        copy.deepcopy(policy_of(folder)),
        GenerationSampler(length),
        FunctionTask({"reward_of_it": reward, "even": even or is_even}, kinds={"even": kind}, **task),
        Objective("reward_of_it", {"even": Constraint(at_least=0.9)}),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
        optimization=Optimization(minibatch_size=GROUP),
        group_size=GROUP,
    )
    memory = Memory()
    trainer = quiet_trainer(LagrangianCallback(SoftmaxAdam()), memory, logger=memory, max_steps=updates, max_epochs=-1)
    trainer.fit(module, PromptDataModule(str(folder / prompts), prompts_per_update=PROMPTS))
    return memory


def is_even(completions):
    return [float(len(text) % 2 == 0) for text in completions]


def lengths(completions):
    return [float(len(text)) for text in completions]


def test_a_function_that_raises_ends_the_run_with_its_own_error(folder):
    with pytest.raises(ZeroDivisionError) as error:
        train(folder, lambda completions: [1 / 0])
    assert error.value.__notes__ == ["Raised by the reward function of signal 'reward_of_it'."]


@pytest.mark.parametrize("faulty", ["reward_of_it", "even"])
def test_a_signal_without_a_finite_value_for_20_updates_ends_the_run(folder, faulty):
    """One finite value, or none that applies, is enough to continue."""
    calls = []

    def never(completions):
        calls.append(len(completions))
        return [math.nan] * len(completions)

    def rarely(completions):
        last = float(len(calls) % 15 == 0)
        return [*never(completions)[1:], last if last else math.nan]

    def train_with(function, updates):
        calls.clear()
        reward, even = (function, None) if faulty == "reward_of_it" else (lengths, function)
        return train(folder, reward, even, updates=updates, kind="any", length=1)

    with pytest.warns(UserWarning, match="not finite"):
        with pytest.raises(UserError, match=f"finite values of signal '{faulty}'.*none in 20 updates"):
            train_with(never, 30)
        assert len(calls) == 20
        train_with(rarely, 22)
    train_with(lambda completions: [None] * len(completions), 21)


def test_a_function_that_hangs_ends_the_run_after_the_time_limit(folder):
    """And is cancelled, if it is asynchronous."""
    forever, cancelled = threading.Event(), threading.Event()

    async def hangs(completions):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    for function in (lambda completions: forever.wait(), hangs):
        with pytest.raises(UserError, match=r"'reward_of_it' to return within 0.2 s, but got no result, try a larger"):
            train(folder, function, time_limit=0.2)
    assert cancelled.wait(5)
    forever.set()


def test_a_time_limit_that_is_kept_changes_nothing(folder):
    async def late(completions):
        await asyncio.sleep(0)
        return lengths(completions)

    runs = [train(folder, lengths), train(folder, lengths, time_limit=60), train(folder, late, time_limit=60)]
    for run in runs[1:]:
        assert torch.equal(run.parameters[-1], runs[0].parameters[-1])
    assert not torch.equal(*runs[0].parameters)

    def raises(completions):
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        train(folder, raises, time_limit=60)
    with pytest.raises(ValueError, match="time_limit` to be greater than 0, but got 0"):
        FunctionTask({"it": lengths}, time_limit=0)


def test_functions_compute_alike_with_a_time_limit():
    """What torch keeps by thread is that of the caller."""

    def computes(completions):
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    def found(**limit):
        return call_functions({"it": computes}, {"completions": []}, **limit)["it"]

    assert found(time_limit=60) == found() == (True, False, torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert found(time_limit=60) == found() == (False, False, torch.bfloat16)


FAULTS = [math.nan, math.inf, -math.inf, 10**400, 1e300, None]


@settings(deadline=None, max_examples=6, phases=[Phase.generate])
@given(st.lists(st.sampled_from([0.0, 1.0, *FAULTS]), min_size=16, max_size=16), st.booleans())
def test_whatever_a_function_returns_no_dual_and_no_weight_takes_a_number_that_is_not_finite(
    folder, values, all_faulty
):
    """Values of both functions in two updates; the counts that are logged are those of what was returned."""
    values = [math.nan] * 16 if all_faulty else values
    calls = []

    def returns(completions):
        calls.append(1)
        return values[8 * (len(calls) - 1) :][: len(completions)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = train(folder, lengths, returns, kind="any")
    for update in range(2):
        part = values[8 * update : 8 * update + 8]
        faults = sum(value is not None and value not in (0.0, 1.0) for value in part)
        assert memory.metrics[update].get("faults/even", 0) == faults
        assert memory.metrics[update].get("inapplicable/even", 0) == part.count(None) / 8
        good = [value for value in part if value in (0.0, 1.0)]
        assert ("rate/even" in memory.metrics[update]) == bool(good)
        if good:
            assert memory.metrics[update]["rate/even"] == pytest.approx(sum(good) / len(good))
        else:
            start = torch.full((2,), 0.5, dtype=torch.float64) if update == 0 else memory.weights[0]
            assert torch.equal(memory.weights[update], start), "nothing observed, no dual step"
        assert all(math.isfinite(value) for value in memory.metrics[update].values())
    assert torch.stack(memory.weights).isfinite().all() and memory.parameters[-1].isfinite().all()


@pytest.mark.parametrize(("short", "among"), [(2, "3 prompts"), (1200, "the 1,000 longest prompts")])
def test_prompts_that_are_too_long_are_found_before_training(folder, short, among):
    """Of many prompts only the longest are read at the start, because a million would take minutes."""
    rows = [{"prompt": f"short {number}"} for number in range(short)]
    rows.insert(1, {"prompt": "Long. " * 3000})
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    called = []
    with pytest.raises(UserError, match=rf"1 of {among} too long \(such as prompt 1, of \d+ tokens\)"):
        train(folder, lambda completions: called.append(1), prompts="long.jsonl")
    assert not called


def test_empty_answers_are_answers(folder, monkeypatch):
    """All of them end at once: a stop token each, text of no length, and nothing that varies."""
    monkeypatch.setattr(TokenChoice, "__call__", lambda self, logits, *_: self.stops[0].expand(len(logits)))
    seen = []

    def reward(completions, completion_ids):
        seen.extend(zip(completions, completion_ids, strict=True))
        return lengths(completions)

    memory = train(folder, reward)
    assert {text for text, _ in seen} == {""} and {len(ids) for _, ids in seen} == {1}
    assert memory.metrics[0]["rollout/length"] == 1 and memory.metrics[0]["rate/even"] == 1
    assert memory.metrics[0]["groups/informative/reward"] == memory.metrics[0]["groups/informative/even"] == 0
    assert torch.equal(*memory.parameters)


def test_groups_in_which_nothing_varies_move_the_duals_alone(folder):
    memory = train(folder, lambda completions: [1.0] * len(completions), lambda completions: [0.0] * len(completions))
    assert [metrics["groups/informative/reward"] for metrics in memory.metrics] == [0, 0]
    assert [metrics["policy/grad_norm"] for metrics in memory.metrics] == [0, 0]
    assert torch.equal(*memory.parameters), "SGD, no KL term"
    assert memory.weights[1][1] > memory.weights[0][1] > 0.5, "the rate 0 is below 0.9"


def test_supervised_fine_tuning_ends_with_a_gradient_that_is_not_finite(folder):
    rows = [{"prompt": "What is 1 + 1?", "completion": "2"}] * 2
    (folder / "demonstrations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    module = SupervisedFineTuning(
        CausalLMPolicy(str(folder / "model")),
        GenerationSampler(6),
        FunctionTask({"even": is_even}),
        Objective("even", {}),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    )
    module.policy.load()
    with torch.no_grad():
        module.policy.model.model.norm.weight.fill_(torch.nan)
    trainer = quiet_trainer(max_steps=1)
    with pytest.raises(FloatingPointError, match="finite gradients in update 0, but got NaN or infinity"):
        trainer.fit(module, PromptDataModule(str(folder / "demonstrations.jsonl"), prompts_per_update=2))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line(monkeypatch, capsys, number):
    def full(arguments):
        raise OSError(number, "No space left on device", "runs/log")

    monkeypatch.setattr(command_line, "main", full)
    with pytest.raises(SystemExit, match="2"):
        command_line.run()
    assert "room on the disk, but got: " in (message := capsys.readouterr().err) and message.count("\n") == 1

    def other(arguments):
        raise PermissionError("runs/log")

    monkeypatch.setattr(command_line, "main", other)
    with pytest.raises(SystemExit, match="1"):
        command_line.run()
    assert "PermissionError: runs/log" in capsys.readouterr().err
