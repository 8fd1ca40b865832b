"""Ctrl-C, SIGTERM and SIGHUP, sent to real processes: in an update, in an evaluation, and twice."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from tests.forked import server
from tests.run.checkpoints import termination_worker
from tests.run.checkpoints.test_written_when import ARGUMENTS

RUN = ["fit", *ARGUMENTS, "--trainer.logger.name=run", "--callbacks.checkpoints.every_n_train_steps=2"]
FOLDER = Path("runs/run/version_0")
LAST = FOLDER / "checkpoints/last.ckpt"


@pytest.fixture
def start(folder, monkeypatch):
    """Starts a run, and returns its process once its task hangs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started = []

    def started_run(hang, call=2, arguments=RUN, terminal=None):
        given = (str(folder), arguments, hang, call, None if terminal is None else os.ttyname(terminal[1]))
        process = server().Process(target=termination_worker.train, args=given)
        process.start()
        started.append(process)
        wait(lambda: drained(terminal) and (Path("here").exists() or process.exitcode is not None))
        time.sleep(0.2)
        assert process.exitcode is None, output()
        return process

    yield started_run
    for process in started:
        process.kill()


def wait(reached, seconds=120):
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def drained(terminal):
    """Read what a terminal shows, because a full one makes its process wait."""
    with contextlib.suppress(BlockingIOError):
        while terminal is not None and os.read(terminal[0], 1000):
            pass
    return True


def status(process, seconds=60):
    """As a shell has it."""
    process.join(seconds)
    assert process.exitcode is not None, output()
    return process.exitcode if process.exitcode >= 0 else 128 - process.exitcode


def output():
    return Path("output.txt").read_text()


def updates():
    return torch.load(LAST, weights_only=True)["global_step"]


def summary_status():
    return json.loads((FOLDER / "summary.json").read_text())["status"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143), (signal.SIGHUP, "SIGHUP", 129)],
)
def test_a_signal_ends_the_run_after_its_update(start, number, name, code):
    process = start("long")
    os.kill(process.pid, number)
    assert status(process) == code and updates() == 2 and summary_status() == "interrupted"
    assert f"{name}: the run ends after this update, with last.ckpt" in output()
    assert "The run ends after update 2. Resume it with --ckpt_path=last." in output()
    main([*RUN, "--ckpt_path=last"])
    assert torch.load(FOLDER.with_name("version_1") / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 5


@pytest.mark.slow
def test_timeout_and_torchrun_which_send_sigterm_twice_leave_a_checkpoint(start):
    process = start("long")
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.1)
    assert status(process) == 143 and updates() == 2


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_run_at_once(start):
    """The checkpoint before stays."""
    process = start("sleep", call=4)
    for pause in (0.5, 0):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(pause)
    began = time.monotonic()
    assert status(process) == 130 and time.monotonic() - began < 30
    assert updates() == 2 and summary_status() == "interrupted"


@pytest.mark.slow
def test_a_terminal_that_closes_leaves_a_checkpoint(start):
    """It sends SIGHUP, and every further print to it would fail."""
    terminal = os.openpty()
    os.set_blocking(terminal[0], False)
    process = start("long", terminal=terminal)
    for end in terminal:
        os.close(end)
    assert status(process) == 129 and updates() == 2 and summary_status() == "interrupted"


@pytest.mark.slow
def test_workers_of_a_reward_function_leave_ctrl_c_to_the_run(start):
    """A terminal sends it to all processes, and SIGHUP too; without its workers, the update would never end."""
    process = start("forked")
    time.sleep(0.5)  # both workers have begun
    workers = list(map(int, Path("workers").read_text().split()))
    for worker in workers:
        os.kill(worker, signal.SIGHUP)
    for worker in [process.pid, *workers]:
        os.kill(worker, signal.SIGINT)
    assert status(process) == 130 and updates() == 2 and Path("workers are done").exists()


@pytest.mark.slow
def test_workers_end_when_a_reward_function_ends_them(start):
    """By SIGTERM, which isn't meant for the run."""
    process = start("forked")
    assert status(process) == 0 and updates() == 5 and Path("workers are done").exists()
    assert "SIGTERM" not in output()


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("validate", signal.SIGTERM, 143),
        ("before the first update", signal.SIGINT, 130),
        ("before the first update", signal.SIGHUP, 129),
    ],
)
def test_without_anything_to_save_the_first_signal_ends_the_run_at_once(start, command, number, code):
    """Lightning swallows SIGTERM here."""
    arguments = ["validate", *RUN[1:]] if command == "validate" else [*RUN, "--callbacks.initial_rates=InitialRates"]
    process = start("sleep", call=1, arguments=arguments)
    os.kill(process.pid, number)
    assert status(process, 30) == code and not LAST.exists()
