"""SIGTERM and Ctrl-C, sent to real processes: in an update, in one that hangs, and twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.checkpoints.watchdog import PATIENCE, RESTS, WORKS, Clock, descendants
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

    def started_run(hang, call=2, grace=1.0, arguments=RUN):
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


def command(process):
    """Of a process that runs; empty otherwise."""
    file = Path(f"/proc/{process}/cmdline")
    return file.read_bytes().split(b"\0")[0] if file.exists() else b""


def output():
    return Path("output.txt").read_text()


def updates():
    return torch.load(LAST, weights_only=True)["global_step"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_its_update(start, number, code):
    process = start("long", grace=60)
    os.kill(process.pid, number)
    assert status(process) == code and updates() == 2
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"{name}: last.ckpt is written after this update; a second one ends at once." in output()
    assert "The run ends after update 2. Resume it with --ckpt_path=last." in output()
    main([*RUN, "--ckpt_path=last"])
    assert torch.load(LAST.parents[2] / "version_1/checkpoints/last.ckpt", weights_only=True)["global_step"] == 5


@pytest.mark.slow
def test_timeout_which_sends_each_signal_twice_leaves_a_checkpoint(start):
    process = start("long", grace=60)
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.1)
    assert status(process) == 143 and updates() == 2


@pytest.mark.slow
def test_workers_of_a_reward_function_leave_ctrl_c_to_the_run(start):
    """A terminal sends it to all processes; without its workers, the update would never end."""
    process = start("forked", grace=60)
    for worker in [process.pid, *descendants(process.pid)]:
        os.kill(worker, signal.SIGINT)
    assert status(process) == 130 and updates() == 2 and Path("workers are done").exists()


@pytest.mark.slow
def test_workers_end_when_a_reward_function_ends_them(start):
    """By SIGTERM, which isn't meant for the run."""
    process = start("forked", grace=1)
    assert status(process) == 0 and updates() == 5 and Path("workers are done").exists()
    assert "SIGTERM" not in output()


@pytest.mark.parametrize(
    ("hang", "code"),
    [
        ("stubborn", 143),
        ("regular expression", 143),
        ("time limit", 143),
        pytest.param("native", 137, marks=pytest.mark.slow),
        pytest.param("regular expression within a time limit", 137, marks=pytest.mark.slow),
    ],
)
def test_sigterm_ends_an_update_that_hangs(start, hang, code):
    """Also where no handler and no thread of Python's can run: then by SIGKILL, which shells call 137."""
    process = start(hang, call=4)
    os.kill(process.pid, signal.SIGTERM)
    assert status(process) == code and updates() == 2
    assert "did not end within 1 s of SIGTERM and is given up" in output()


@pytest.mark.slow
def test_a_second_signal_ends_the_run_at_once(start):
    for first, second, code in ((signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGTERM, 143)):
        Path("here").unlink(missing_ok=True)
        process = start("stubborn", call=4, grace=60)
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
    process = start("sleep", call=1, grace=60, arguments=arguments)
    os.kill(process.pid, number)
    assert status(process, 10) == code and not LAST.exists()


@pytest.mark.slow
def test_all_processes_that_a_run_has_started_end_with_it(start):
    process = start("program", grace=60)
    program, watchdog = sorted(descendants(process.pid), key=lambda number: command(number) != b"sleep")
    assert command(program) == b"sleep"
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(AGAIN)
    assert status(process) == 143
    wait(lambda: not (command(program) or command(watchdog)), 5)


@pytest.mark.slow
def test_no_watchdog_is_left_by_a_run_or_outlives_it(start, tmp_path, monkeypatch):
    before = descendants(os.getpid())
    main(RUN)
    assert descendants(os.getpid()) == before
    process = start("sleep", call=4)
    (watchdog,) = descendants(process.pid)
    process.kill()
    wait(lambda: not Path(f"/proc/{watchdog}").exists(), 5)


@pytest.mark.slow
def test_a_run_does_without_its_watchdog(start):
    process = start("long", grace=60)
    (watchdog,) = descendants(process.pid)
    os.kill(watchdog, signal.SIGKILL)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert status(process) == 143 and updates() == 2


@pytest.mark.slow
def test_two_processes_end_when_one_hangs(tmp_path):
    """The first one, which gets the signal, waits for the other one in native code."""
    script = tmp_path / "hanging.py"
    script.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from lightning.pytorch import Callback\n"
        "from lightning_cgrpo.checkpoints import termination\n"
        "termination.GRACE = 1.0\n"
        "class Hang(Callback):\n"
        "    def on_train_batch_start(self, trainer, *_):\n"
        "        if trainer.global_rank and trainer.global_step == 3:\n"
        "            Path('here').write_text(str(os.getpid()))\n"
        "            time.sleep(1000)\n"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lightning_cgrpo", *RUN, "--trainer.devices=2", "--callbacks.hang=hanging.Hang"]
    with (tmp_path / "output.txt").open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file)
    wait(lambda: (tmp_path / "here").exists() or process.poll() is not None)
    time.sleep(1)
    process.terminate()
    text = (tmp_path / "output.txt").read_text
    assert process.wait(60) in (143, -signal.SIGKILL), text()
    assert "did not end within" in text()  # the time allowed grows with that of an update
    wait(lambda: not Path(f"/proc/{(tmp_path / 'here').read_text()}").exists(), 5)


def test_an_update_has_three_times_the_longest_but_a_minute_at_least():
    clock = Clock(60)
    for message, at in ((WORKS, 0), (WORKS, 10), (signal.SIGTERM, 15)):
        clock.receive(message, at)
    assert clock.deadline() == 15 + 60
    clock = Clock(60)
    for message, at in ((WORKS, 0), (WORKS, 100), (WORKS, 130), (signal.SIGTERM, 140)):
        clock.receive(message, at)
    assert clock.deadline() == 140 + 300
    clock.receive(RESTS, 200)  # a checkpoint is written
    assert clock.deadline() == float("inf")
    clock.receive(WORKS, 1000)  # the signal came too late for this update
    assert clock.deadline() == 1000 + 300


def test_only_sigterm_sets_a_deadline_and_only_a_second_signal_forces():
    clock = Clock(60)
    clock.receive(WORKS, 0)
    clock.receive(signal.SIGINT, 5)
    assert clock.deadline() == float("inf")
    clock.receive(signal.SIGINT, 5.5)
    clock.receive(signal.SIGCHLD, 9)
    assert clock.deadline() == float("inf")
    clock.receive(signal.SIGINT, 8)
    assert clock.deadline() == 8 + PATIENCE
    clock = Clock(60)
    clock.receive(signal.SIGTERM, 5)  # before the first update
    assert clock.deadline() == 5 + PATIENCE
