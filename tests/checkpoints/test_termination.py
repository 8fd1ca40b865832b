"""SIGTERM and Ctrl-C, sent to real processes: in an update, in an evaluation, and twice."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from tests.checkpoints import termination_worker
from tests.checkpoints.test_files import ARGUMENTS
from tests.forked import server

RUN = ["fit", *ARGUMENTS, "--trainer.logger.name=run", "--callbacks.checkpoints.every_n_train_steps=2"]
LAST = Path("runs/run/version_0/checkpoints/last.ckpt")
AGAIN = 1.6
"""Seconds after which a signal is a second one."""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a run, and returns its process once its task hangs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started = []

    def started_run(hang, call=2, arguments=RUN, grace=60):
        process = server().Process(target=termination_worker.train, args=(str(tmp_path), arguments, hang, call, grace))
        process.start()
        started.append(process)
        wait(lambda: Path("here").exists() or process.exitcode is not None)
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


def status(process, seconds=60):
    """As a shell has it."""
    process.join(seconds)
    assert process.exitcode is not None, output()
    return process.exitcode if process.exitcode >= 0 else 128 - process.exitcode


def output():
    return Path("output.txt").read_text()


def updates():
    return torch.load(LAST, weights_only=True)["global_step"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_its_update(start, number, code):
    process = start("long")
    os.kill(process.pid, number)
    assert status(process) == code and updates() == 2
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"{name}: last.ckpt is written after this update; a second one ends at once." in output()
    assert "The run ends after update 2. Resume it with --ckpt_path=last." in output()
    main([*RUN, "--ckpt_path=last"])
    assert torch.load(LAST.parents[2] / "version_1/checkpoints/last.ckpt", weights_only=True)["global_step"] == 5


@pytest.mark.slow
def test_timeout_which_sends_each_signal_twice_leaves_a_checkpoint(start):
    process = start("long")
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.1)
    assert status(process) == 143 and updates() == 2


@pytest.mark.slow
def test_workers_of_a_reward_function_leave_ctrl_c_to_the_run(start):
    """A terminal sends it to all processes; without its workers, the update would never end."""
    process = start("forked")
    time.sleep(0.5)  # both workers have begun
    for worker in [process.pid, *map(int, Path("workers").read_text().split())]:
        os.kill(worker, signal.SIGINT)
    assert status(process) == 130 and updates() == 2 and Path("workers are done").exists()


@pytest.mark.slow
def test_workers_end_when_a_reward_function_ends_them(start):
    """By SIGTERM, which isn't meant for the run."""
    process = start("forked")
    assert status(process) == 0 and updates() == 5 and Path("workers are done").exists()
    assert "SIGTERM" not in output()


def test_sigterm_ends_an_update_that_hangs(start):
    process = start("stubborn", call=4, grace=1)
    os.kill(process.pid, signal.SIGTERM)
    assert status(process) == 128 + signal.SIGALRM and updates() == 2


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(start):
    for first, second, code in ((signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGTERM, 143)):
        Path("here").unlink(missing_ok=True)
        process = start("stubborn", call=4)
        os.kill(process.pid, first)
        time.sleep(AGAIN)
        os.kill(process.pid, second)
        began = time.monotonic()
        assert status(process) == code and time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("command", "number", "code"), [("validate", signal.SIGTERM, 143), ("before the first update", signal.SIGINT, 130)]
)
def test_without_anything_to_save_the_first_signal_ends_the_run_at_once(start, command, number, code):
    """Lightning swallows SIGTERM here."""
    arguments = ["validate", *RUN[1:]] if command == "validate" else [*RUN, "--callbacks.initial_rates=InitialRates"]
    process = start("sleep", call=1, arguments=arguments)
    os.kill(process.pid, number)
    assert status(process, 10) == code and not LAST.exists()
