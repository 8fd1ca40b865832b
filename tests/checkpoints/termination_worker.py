"""Runs whose task hangs in a chosen call, in a process of their own; see test_termination.py."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.checkpoints import termination
from lightning_cgrpo.tasks.functions.calls import call_functions
from lightning_cgrpo.tasks.gridworld import GridworldTask


def train(folder: str, arguments: list[str], hang: str, call: int, grace: float) -> None:
    """The command line in a folder, whose output goes to a file there; ``here`` appears when the task hangs."""
    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where tests run in the background
    termination.GRACE = grace
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


def forever() -> None:
    while True:
        time.sleep(0.01)


def stubborn() -> None:
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


def regular_expression() -> None:
    re.match("(a+)+$", "a" * 60 + "b")


def native() -> None:
    """A mutex that is locked twice, without Python's lock."""
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


HANGS = {
    "sleep": lambda: time.sleep(1000),
    "long": lambda: time.sleep(2),
    "stubborn": stubborn,
    "regular expression": regular_expression,
    "native": native,
    "time limit": lambda: call_functions({"signal": lambda: time.sleep(1000)}, {}, time_limit=1000),
    "regular expression within a time limit": lambda: call_functions({"signal": regular_expression}, {}, 1000),
    "program": lambda: subprocess.run(["sleep", "1000"]),
    "forked": lambda: _forked(),
}


def _forked() -> None:
    """Workers of a reward function, which Ctrl-C in a terminal reaches too, and which SIGTERM ends."""
    fork = get_context("fork")
    sleeper = fork.Process(target=time.sleep, args=(1000,))
    sleeper.start()
    with fork.Pool(2) as workers:
        assert workers.map(_slow, range(2)) == [0, 1]
    sleeper.terminate()
    sleeper.join(5)
    assert sleeper.exitcode == -signal.SIGTERM
    time.sleep(3)
    Path("workers are done").touch()


def _slow(number: int) -> int:
    time.sleep(2)
    return number
