"""Expressions that take forever are faults of one answer: the grader goes on, and ends with its process."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch

from lightning_cgrpo import ConstrainedGRPO, FunctionTask, GenerationSampler, Objective
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.tasks.functions import math_correct
from lightning_cgrpo.tasks.grading import grader as grading
from lightning_cgrpo.tasks.grading.grader import Grader, GraderError, grader_of
from lightning_cgrpo.tasks.grading.process import memory_limit
from tests.quiet import quiet_trainer

FOREVER = {
    "tower": "9^{9^{9}}",
    "fraction of towers": r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}",
    "factorial": "((10!)!)!",
    "sum": r"\sum_{n=1}^{10^9} n^{n}",
    "parentheses": "(" * 3000 + "1" + ")" * 3000,
    "fractions": r"\frac{1}{" * 20 + "2" + "}" * 20,
    "binomial": r"\binom{10^8}{5\cdot 10^7}",
    "set": r"\{" + ",".join(map(str, range(3000))) + r"\}",
    "power of a sum": r"(x+y+z+1)^{400} - (x+y+z+1)^{399}",
    "integral": r"\int_0^1 x^{x^{x^{x}}} dx",
}


@pytest.fixture(scope="module")
def grader():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "CPU_SECONDS", 0.15)
        made = Grader()
    yield made
    made.end()


@pytest.mark.parametrize("expression", FOREVER.values(), ids=FOREVER)
def test_an_expression_that_takes_forever_is_a_fault_and_the_next_is_graded(expression, grader):
    for ask in (lambda: grader.is_right(rf"\boxed{{{expression}}}", "3"), lambda: grader.reads(expression)):
        begun = time.monotonic()
        with contextlib.suppress(GraderError):  # or a value: not each of them hangs as gold and as an answer
            ask()
        assert time.monotonic() - begun < 20
    process = grader._process.pid
    assert grader.is_right(r"\boxed{\frac{2}{4}}", "0.5") and not grader.is_right("$2$", "3")
    assert grader._process.pid == process  # started once


def test_a_gold_answer_that_failed_is_not_tried_again(grader):
    with pytest.raises(GraderError):
        grader.reads(FOREVER["tower"])
    begun = time.process_time()
    for _ in range(100):
        with pytest.raises(GraderError):
            grader.reads(FOREVER["tower"])
    assert time.process_time() - begun < 0.1


def test_memory_is_limited():
    with memory_limit(2**26), pytest.raises(MemoryError):
        bytearray(2**28)
    assert len(bytearray(2**28)) == 2**28


def test_a_text_beyond_the_memory_is_one_answer_alone(monkeypatch):
    monkeypatch.setattr(grading, "MEMORY", 2**23)
    grader = Grader()
    assert grader.is_right("$3$", "3")
    with contextlib.suppress(GraderError):
        assert not grader.is_right("It is so. " * 2**20 + "$3$", "3")
    assert grader.is_right("$3$", "3")
    grader.end()


def test_a_process_that_is_killed_is_a_fault_and_another_is_started():
    grader = Grader()
    assert grader.reads("3")
    os.killpg(grader._process.pid, signal.SIGKILL)
    with pytest.raises(GraderError):
        grader.is_right("$3$", "3")
    assert grader.is_right("$3$", "3")
    grader.end()


def test_threads_and_a_fork_have_their_own_answers():
    assert math_correct(["$3$"], ["3"]) == [1.0]
    results = {}

    def grade(number):
        results[number] = math_correct([f"${number}$"] * 5, ["1"] * 5)

    threads = [threading.Thread(target=grade, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [float(number == 1)] * 5 for number in range(4)}

    child = os.fork()
    if not child:
        right = math_correct(["$3$", "$4$"], ["3", "3"]) == [1.0, 0.0]
        grader_of(os.getpid()).end()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert math_correct(["$3$"], ["3"]) == [1.0]  # the child did not end its parent's


PARENT = """
import os, sys, time
from lightning_cgrpo.tasks.grading.grader import Grader
grader = Grader()
grader.reads("3")
print(grader._process.pid, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)", "raise ValueError"])
def test_it_ends_with_its_process(ending):
    command = [sys.executable, "-c", PARENT.format(ending=ending)]
    process = int(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout)
    deadline = time.monotonic() + 10
    while _group_runs(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _group_runs(group):
    """True if the process or its worker runs."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, _, of_group = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            return True
    return False


def trained(model, score, updates):
    """A run with the reward of a function, and its trainer."""
    policy, sampler = CausalLMPolicy(str(model)), GenerationSampler(max_new_tokens=2)
    task, sgd = FunctionTask({"m": score}), partial(torch.optim.SGD, lr=0.0)
    module = ConstrainedGRPO(policy, sampler, task, Objective("m"), sgd, group_size=2)
    trainer = quiet_trainer(max_steps=updates)
    rows = [{"prompt": "a", "answer": "7"}, {"prompt": "b", "answer": "3"}]
    trainer.fit(module, PromptDataModule(rows, prompts_per_update=2))
    return module, trainer


def test_a_run_counts_the_fault_and_goes_on(tiny_model):
    """One answer of four hangs in each update: the others are graded, and the run ends as it should."""

    def score(completions, answer):
        said = [r"\boxed{9^{9^{9}}}", r"\boxed{7}", r"\boxed{8}", r"\boxed{3}"]
        return math_correct(said, answer)

    with pytest.warns(UserWarning, match="Signal values were not finite and are left out: {'m': 1}"):
        module, _ = trained(tiny_model, score, 1)
    assert module.latest_metrics["faults/m"] == 1
    assert module.latest_metrics["reward/mean"] == pytest.approx(2 / 3)


CASES = {
    **FOREVER,
    "plain tower": "10^{10^{10}}",
    "large factorial": "10000000!",
    "large power": "2^{10000000}",
    "long number": "7" * 100_000,
    "equation": r"x^{20}+3x^{19}-\sin(x)=0",
    "many fractions": r"\frac{1}{" * 200 + "1" + "}" * 200,
    "everyday equation": r"x^2+3x-\sin(x)=0",
    "everyday power": "2^{100}",
    "power": "7^{1000}",
    "tower of three": "9^{99^{9}}",
}


@pytest.mark.slow
def test_a_run_of_20_updates_with_every_expression_ends(tiny_model):
    """In update n, expression n is an answer, and expression n + 1 the gold answer of another prompt."""
    said = [rf"\boxed{{{expression}}}" for expression in CASES.values()]
    graded, longest = [], 0.0

    def score(completions, answer):
        nonlocal longest
        number = len(graded)
        gold = list(CASES.values())[(number + 1) % len(CASES)]
        begun = time.monotonic()
        values = math_correct([said[number], r"\boxed{7}", r"\boxed{7}", r"\boxed{3}"], ["7", "7", "3", gold])
        longest = max(longest, time.monotonic() - begun)
        assert values[1:3] == [1.0, 0.0]
        graded.append(values)
        return values

    _, trainer = trained(tiny_model, score, len(CASES))
    assert trainer.global_step == len(graded) == 20
    assert sum(values[0] is None for values in graded) > 5 and sum(values[0] == 0.0 for values in graded) > 2
    assert longest < 60  # two expressions of two CPU seconds, and a new process for each, on a loaded machine
