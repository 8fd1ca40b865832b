"""Runs whose task hangs in a chosen call, in a process of their own; see test_termination.py."""

import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.checkpoints import termination
from lightning_cgrpo.tasks.gridworld import GridworldTask


def train(folder: str, arguments: list[str], hang: str, call: int, grace: int) -> None:
    """The command line in a folder, whose output goes to a file there; ``here`` appears when the task hangs."""
    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    termination.GRACE = grace
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where tests run in the background
    calls, score = [], GridworldTask.score

    def scored(self, prompts, rollouts):
        calls.append(1)
        if len(calls) == call:
            Path("here").touch()
            HANGS[hang]()
        return score(self, prompts, rollouts)

    GridworldTask.score = scored
    sys.argv = ["lightning_cgrpo", *arguments]
    command_line.run()


def stubborn() -> None:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


HANGS = {
    "sleep": lambda: time.sleep(1000),
    "long": lambda: time.sleep(2),
    "stubborn": stubborn,
    "forked": lambda: _forked(),
}


def _forked() -> None:
    """Workers of a reward function, which Ctrl-C in a terminal reaches too, and which SIGTERM ends."""
    fork = get_context("fork")
    sleeper = fork.Process(target=time.sleep, args=(1000,))
    sleeper.start()
    with fork.Pool(2) as workers:
        numbers = [sleeper.pid, *(worker.pid for worker in workers._pool)]
        Path("workers").write_text(" ".join(map(str, numbers)))
        assert workers.map(_slow, range(2)) == [0, 1]
    sleeper.terminate()
    sleeper.join(5)
    assert sleeper.exitcode == -signal.SIGTERM
    time.sleep(3)
    Path("workers are done").touch()


def _slow(number: int) -> int:
    time.sleep(2)
    return number
