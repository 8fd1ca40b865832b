"""Runs whose task hangs in a chosen call, in a process of their own; see test_termination.py."""

import fcntl
import os
import signal
import sys
import termios
import time
from multiprocessing import get_context
from pathlib import Path

from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.tasks.gridworld import GridworldTask


def train(folder: str, arguments: list[str], hang: str, call: int, terminal: str | None) -> None:
    """The command line in a folder, whose output goes to a file there, or to a terminal that controls this process.

    ``here`` appears when the task hangs.
    """
    os.chdir(folder)
    if terminal is None:
        output = os.open("output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    else:
        os.setsid()
        output = os.open(terminal, os.O_RDWR)
        fcntl.ioctl(output, termios.TIOCSCTTY, 0)
        arguments = [*arguments, "--trainer.enable_progress_bar=true", "--callbacks.progress=ObjectiveProgressBar"]
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which may be ignored where tests run in the background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
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


HANGS = {"sleep": lambda: time.sleep(1000), "long": lambda: time.sleep(2), "forked": lambda: _forked()}


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
