"""Batches made ahead are those made at once, errors keep their text, and no process stays behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts import source
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource
from lightning_cgrpo.core.prompts.worker import made_ahead
from lightning_cgrpo.core.rollout import PromptGroups

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Thing:
    name: str
    view: torch.Tensor


class Things(PromptSource):
    """Columns of many kinds, which tell where they were made."""

    def __init__(self, size: int) -> None:
        self.size, self.function = size, lambda: None  # a function can't be pickled

    def __len__(self) -> int:
        return self.size

    def groups(self, index: torch.Tensor) -> PromptGroups:
        large = torch.arange(1000.0, dtype=torch.float64)
        columns = {
            "square": index**2,
            "thing": [Thing(f"thing {number}", large[number : number + 3]) for number in index.tolist()],
            "half": torch.ones(len(index), dtype=torch.bfloat16),
            "image": [large.numpy().reshape(10, 100)[::2]] * len(index),
            "made by": [(os.getpid(), torch.get_num_threads())] * len(index),
        }
        return PromptGroups(index, columns)


def children() -> list[int]:
    return [process.pid for process in multiprocessing.active_children()]


def same(groups: PromptGroups, others: PromptGroups) -> bool:
    return (
        torch.equal(groups.index, others.index)
        and groups.index.dtype == others.index.dtype
        and torch.equal(groups.columns["square"], others.columns["square"])
        and torch.equal(groups.columns["half"], others.columns["half"])
        and all((a == b).all() for a, b in zip(groups.columns["image"], others.columns["image"], strict=True))
        and all(
            a.name == b.name and torch.equal(a.view, b.view) and a.view.dtype == b.view.dtype
            for a, b in zip(groups.columns["thing"], others.columns["thing"], strict=True)
        )
    )


@pytest.mark.parametrize("start", [0, 3, 4, 7])
@pytest.mark.parametrize("processes", [1, 3])
def test_batches_are_those_made_at_once(start, processes, monkeypatch):
    """From any update on, and each process's share, be it empty."""
    for rank in range(processes):
        monkeypatch.setattr(source, "world", lambda rank=rank: (rank, processes))
        ahead, at_once = (
            list(PromptLoader(Things(11), 2, seed=4, start=lambda: start, drop_last=True, worker=worker))
            for worker in (True, False)
        )
        assert len(ahead) == len(at_once) == 5 - start % 5
        assert all(same(*pair) for pair in zip(ahead, at_once, strict=True))
        makers = {maker for groups in ahead for maker in groups.columns["made by"]}
        assert len(makers) <= 1 and all(pid != os.getpid() and threads == 1 for pid, threads in makers)


def test_a_batch_is_made_while_the_one_before_is_used():
    def slow(index):
        time.sleep(0.3)
        return PromptGroups(index)

    batches = made_ahead(slow, torch.arange(4).split(1))
    next(batches)
    for _ in range(3):
        time.sleep(0.6)
        before = time.monotonic()
        next(batches)
        assert time.monotonic() - before < 0.2


def test_no_process_stays_behind():
    loader = PromptLoader(Things(8), 2, worker=True)
    iterator = iter(loader)
    assert not children()  # no batch was asked for
    next(iterator)
    assert len(children()) == 1
    del iterator
    assert not children()
    assert len(list(islice(loader, 2))) == 2 and not children()
    assert len(list(loader)) == 4 and not children()


def test_errors_are_those_of_the_source():
    def broken(index):
        if int(index[0]) == 1:
            raise UserError("Expected a scene, but got none.")
        return PromptGroups(index)

    batches = made_ahead(broken, torch.arange(3).split(1))
    next(batches)
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value) == "Expected a scene, but got none."
    assert "in broken" in str(caught.value.__cause__) and "test_prompt_worker.py" in caught.value.__notes__[0]
    assert not children()


def test_a_killed_worker_is_named():
    batches = made_ahead(Things(9).groups, torch.arange(9).split(1))
    next(batches)
    os.kill(children()[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="The process that makes prompts ended with status -9"):
        list(batches)


def test_signals_to_all_processes_of_a_job_leave_the_worker_alone():
    batches = made_ahead(Things(4).groups, torch.arange(4).split(1))
    next(batches)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(children()[0], number)
    assert len(list(batches)) == 3


PROGRAM = """
import multiprocessing, os, signal, sys, time, torch
from lightning_cgrpo.core.prompts.worker import made_ahead
from lightning_cgrpo.core.rollout import PromptGroups
batches = made_ahead(PromptGroups, torch.arange(4).split(1))
next(batches)
print(multiprocessing.active_children()[0].pid, flush=True)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "raise KeyError('x')"])
def test_the_worker_ends_with_its_process(end):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert run.returncode != 0
    until = time.monotonic() + 5
    while Path(f"/proc/{int(run.stdout)}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{int(run.stdout)}").exists()
