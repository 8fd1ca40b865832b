"""Killed runs that are started again, by torchrun on two nodes and by Ray Train, too, and what ends with a process."""

import importlib.util
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks import kill_loop
from benchmarks.run_differences import differences
from lightning_cgrpo.cli.messages import of_a_lost_process

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("LIGHTNING_CGRPO_KILLS", 3))
UPDATES = 8 * (KILLS + 1)
"""Updates of the whole run; fewer begin between the kills."""
PATIENCE = 900.0
"""Seconds to wait for updates, and for the end."""


def children(*processes: int) -> list[int]:
    lists = [subprocess.run(["pgrep", "-P", str(process)], capture_output=True).stdout for process in processes]
    return [int(child) for listed in lists for child in listed.split()]


def end(processes: list[int]) -> bool:
    """Kill processes; False if all had ended."""
    ended = []
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            ended.append(process)
    return bool(ended)


class Launcher:
    """Starts a run of two processes in `folder`, and starts it again after a kill."""

    arguments = (*kill_loop.arguments("gridworld", "ddp"), f"--trainer.max_steps={UPDATES}", "--ckpt_path=auto")

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def start(self, *command: str) -> None:
        # A store that outlives a round of torchrun keeps addresses of processes that have ended (pytorch#135712).
        more = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with (self.folder / f"output_{len(self.started)}.txt").open("wb") as output:
            options = {"cwd": self.folder, "env": {**os.environ, **more}, "stdout": output, "stderr": subprocess.STDOUT}
            self.started.append(subprocess.Popen(command, **options))

    def kill(self, rank: int, container: bool) -> bool:
        """Kill a process, or all of its container; False if there is none."""
        raise NotImplementedError

    def updates(self) -> int:
        """Updates that have begun, with those that a restart has repeated."""
        return sum(mark.startswith("update") for mark in kill_loop.marks(self.folder))

    def wait(self, updates: int, seconds: float = PATIENCE) -> None:
        """Return after so many more updates have begun, or after so many seconds."""
        seen, deadline = self.updates() + updates, time.monotonic() + seconds
        while self.updates() < seen and time.monotonic() < deadline:
            assert all(process.poll() is None for process in self.started), self.output()[-3000:]
            time.sleep(0.001)

    def output(self) -> str:
        return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("output_*.txt")))


class Torchrun(Launcher):
    """Two nodes on this machine: a loop of a shell repeats torchrun, whose agent starts a process of the run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        agent = (
            f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=100 "
            f"--monitor-interval=0.2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port} --local-addr=127.0.0.1 "
            f"-m lightning_cgrpo {shlex.join(self.arguments)} --trainer.devices=1 --trainer.num_nodes=2"
        )
        for _ in range(2):
            self.start("bash", "-c", f"until {agent}; do sleep 1; done")

    def kill(self, rank: int, container: bool) -> bool:
        agents = children(self.started[rank].pid)
        processes = children(*agents)
        return bool(processes) and end([*(agents if container else []), *processes])

    def close(self) -> None:
        for loop in self.started:
            loop.send_signal(signal.SIGSTOP)  # or it would start another agent
            agents = children(loop.pid)
            end([*children(*agents), *agents, loop.pid])


class RayTrain(Launcher):
    """Two workers of Ray on this machine."""

    script = """
import os, sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

folder = Path(sys.argv[1])

def train():
    os.chdir(folder)
    Path(f"process_{os.environ['RANK']}").write_text(str(os.getpid()))
    from lightning_cgrpo.__main__ import main

    main(arguments)

arguments = sys.argv[2:]
TorchTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=100)),
).fit()
"""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.start(sys.executable, "-c", self.script, str(folder), *self.arguments)

    def kill(self, rank: int, container: bool) -> bool:
        files = self.folder.glob("process_*" if container else f"process_{rank}")
        return end([int(file.read_text()) for file in files])

    def close(self) -> None:
        for process in self.started:
            process.terminate()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        Torchrun,
        pytest.param(
            RayTrain,
            marks=pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="no Ray: pip install 'ray[train]'"),
        ),
    ],
)
def test_a_run_whose_processes_are_killed_at_random_equals_a_whole_run(launcher, tmp_path):
    """Processes or whole containers are killed, also while they start; a process that is left says so in a line."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    started, draw, kills, run = time.monotonic(), random.Random(0), 0, launcher(killed)
    try:
        while kills < KILLS:
            if draw.random() < 0.25:
                run.wait(7, seconds=draw.uniform(0, 10))
            else:
                run.wait(draw.randrange(1, 7))
                time.sleep(draw.uniform(0, 0.1))
            rank, container = draw.randrange(2), draw.random() < 0.3
            if run.kill(rank, container):
                kills += 1
                victim = f"process {rank}{' and its container' * container}, {run.updates()} updates"
                print(f"kill {kills}: {victim}, {time.monotonic() - started:.0f} s", flush=True)
        statuses = [process.wait(PATIENCE) for process in run.started]
    finally:
        run.close()
    text = run.output()
    assert not any(statuses), text[-3000:]
    # Workers of Ray call `main`, which leaves errors to Ray.
    lost = r"but process [01] on 127\.0\.0\.1 is lost, as process [01] found"
    assert launcher is RayTrain or re.search(lost, text), text[-3000:]
    assert len(list(killed.glob("runs/run/version_*"))) > 1
    kill_loop.Run(whole, "gridworld", "ddp", f"--trainer.max_steps={UPDATES}").finish()
    assert list(differences(killed, whole)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:2013",
        "NCCL error: remote process exited or there was a network error",
        "Connection was likely closed. Did the remote server shutdown or crash?",
        "[/pytorch/gloo/transport/tcp/pair.cc:152] timed out connecting: Connection refused, remote=[10.0.0.7]:2013",
    ],
)
def test_what_libraries_say_of_a_lost_process(text):
    try:
        raise ValueError("while sums are added") from RuntimeError(text)
    except ValueError as raised:
        error, message = raised, of_a_lost_process(raised)
    assert message.count("\n") == 0 and "--ckpt_path=auto" in message
    assert ("on 10.0.0.7" in message) == ("10.0.0.7" in text)
    assert of_a_lost_process(ValueError(text)) is None
    error.__cause__.__cause__, error.__cause__.args = error, ("No space left on device",)  # a circle
    assert of_a_lost_process(error) is None


@pytest.mark.slow
def test_killed_runs_go_on_as_if_they_had_not_been(monkeypatch):
    """Three kinds, both tasks, one process and two; the third leaves a part of a directory."""
    for number in (5, 10, 11, 15):
        (trial,) = kill_loop.main(["--kills=1", f"--first={number}", "--seed=1"])
        assert trial.differences == []


def test_what_differs_is_told(tmp_path):
    runs = []
    for name in ("run", "whole"):
        version = tmp_path / name / "runs/run/version_0"
        (version / "checkpoints").mkdir(parents=True)
        state = {"callbacks": {"Checkpoints{}": name}, "state_dict": {"a": torch.zeros(2)}, "loops": [1, {"b": 2}]}
        torch.save(state, version / "checkpoints/last.ckpt")
        (version / "metrics.csv").write_text("rate,step,time/score\n0.5,0,1\n0.25,1,2\n")
        runs.append(tmp_path / name)
    assert list(differences(*runs)) == []
    torch.save({**state, "loops": [1, {"b": 3}]}, runs[0] / "runs/run/version_0/checkpoints/last.ckpt")
    (runs[0] / "runs/run/version_0/metrics.csv").write_text("rate,step,time/score\n0.5,0,9\n")
    shutil.copytree(runs[0] / "runs/run/version_0", runs[0] / "runs/run/version_1")
    (runs[0] / "runs/run/version_1/metrics.csv").write_text("rate,step,time/score\n0.75,0,9\n")
    assert list(differences(*runs)) == [
        "checkpoint.loops[1].b: 3, not 2",
        "(0, 'rate') logged as 0.5 and 0.75",
        "(1, 'rate') logged as None, not 0.25",
    ]


SCRIPT = """
import os, sys, time
from pathlib import Path
from lightning.pytorch import Callback

class Differ(Callback):
    def on_train_batch_end(self, trainer, *_):
        Path(f"process_{trainer.global_rank}").write_text(str(os.getpid()))
        if trainer.global_rank:
            time.sleep(1000)  # as in a collective that the other doesn't come to
        while not Path("process_1").exists():
            time.sleep(0.05)
        raise ValueError("only here")
"""


@pytest.mark.slow
def test_the_others_are_ended_when_the_first_fails(tmp_path):
    (tmp_path / "differ.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "lightning_cgrpo", "fit", "-c", "configs/gridworld.yaml", "--trainer.devices=2"]
    command += ["--trainer.max_steps=3", "--callbacks.initial_rates=null", "--callbacks.differ=differ.Differ"]
    command += ["--data.prompts_per_update=2", "--callbacks.pictures=null", "--trainer.limit_val_batches=0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert result.returncode == 1 and b"only here" in result.stderr
    other = int((tmp_path / "process_1").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)
