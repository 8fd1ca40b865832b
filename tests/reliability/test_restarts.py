"""Restarts by torchrun: the same command, with ``--ckpt_path=auto``."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import kill_loop
from lightning_cgrpo.cli.messages import of_a_lost_process

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3


def workers(agent):
    return [int(child) for file in Path(f"/proc/{agent}/task").glob("*/children") for child in file.read_text().split()]


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_at_random_equals_a_whole_run(tmp_path):
    """The process that is left ends with a line about the other one."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    killed.mkdir()
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=20 --monitor-interval=1"
    command = [sys.executable, *torchrun.split(), "-m", "lightning_cgrpo", *kill_loop.arguments("gridworld", "ddp")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    draw, output = random.Random(0), tmp_path / "output.txt"
    with output.open("wb") as file:
        options = {"cwd": killed, "env": environment, "stdout": file, "stderr": subprocess.STDOUT}
        agent = subprocess.Popen([*command, "--ckpt_path=auto"], **options)
        for _ in range(KILLS):
            seen = len(kill_loop.marks(killed)) + draw.randrange(2, 8)
            deadline = time.monotonic() + 900
            while len(kill_loop.marks(killed)) < seen and agent.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.1))
            os.kill(draw.choice(workers(agent.pid)), signal.SIGKILL)
        status = agent.wait(900)
    text = output.read_text()
    assert status == 0, text[-3000:]
    assert re.search(r"but process [01] on 127\.0\.0\.1 is lost, as process [01] found", text), text[-3000:]
    assert len(list(killed.glob("runs/run/version_*"))) > 1
    kill_loop.Run(whole, "gridworld", "ddp").finish()
    assert list(kill_loop.differences(killed, whole)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:2013",
        "NCCL error: remote process exited or there was a network error",
        "Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_what_libraries_say_of_a_lost_process(text):
    try:
        raise ValueError("while sums are added") from RuntimeError(text)
    except ValueError as error:
        message = of_a_lost_process(error)
    assert message.count("\n") == 0 and "--ckpt_path=auto" in message
    assert ("on 10.0.0.7" in message) == ("10.0.0.7" in text)
    assert of_a_lost_process(ValueError(text)) is None
