"""Kill trainings at random moments, resume them, and compare with an uninterrupted run, bit for bit.

    python -m benchmarks.kill_loop --kills 20 --out kill_loop.json
    python -m benchmarks.kill_loop --first 3 --step 8 --kills 5 --out kill_loop_fsdp2.json  # fsdp2 only
    python -m benchmarks.kill_loop --tasks critic cartpole pendulum minigrid calculator sft navsim --kills 35

Kinds of kills, in turn: SIGKILL and SIGTERM at any time, SIGKILL while a checkpoint is written, SIGKILL and SIGTERM
during validation. Each kind runs on gridworld and word problems, on one process and on two. On two processes either or
both are hit; word problems alternate between ddp and fsdp2, whose checkpoints are directories. Other tasks run on one
process. The same command resumes each run, with ``--ckpt_path=last`` if a checkpoint exists. The run must end with the
uninterrupted checkpoint: weights, optimizer, schedule, multipliers and controller, progress. Randomness is drawn by
counter, so no generators are compared. Unfinished files must be gone. Both parts' logs together must equal the
uninterrupted CSV file, and agree where both logged an update.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import transformers.models.auto.modeling_auto  # noqa: F401  (for the processes that are forked)

import lightning_cgrpo.__main__
import lightning_cgrpo.cli.preparation
from benchmarks.run_differences import differences, read

PATIENCE = 600.0
"""Timeout of every step, in seconds."""
KINDS = ("SIGKILL", "SIGTERM", "SIGKILL, checkpoint", "SIGKILL, validation", "SIGTERM, validation")
COMMON = (
    "--trainer.log_every_n_steps=1 --trainer.logger=lightning.pytorch.loggers.CSVLogger "
    "--trainer.logger.save_dir=runs --trainer.logger.name=run --trainer.max_epochs=-1 "
    "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false "
    "--callbacks.layout=null --callbacks.progress=null "
    "--callbacks.initial_rates.batches=1 --callbacks.marks=benchmarks.kill_marks.Marks --callbacks.marks.path=marks.txt"
)
WORLDS = (
    "--data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=6 --data.eval_prompts=2 "
    "--model.group_size=2 --trainer.val_check_interval=2 --callbacks.pictures=null "
    "--callbacks.checkpoints.every_n_train_steps=1"
)
# Passes over the prompts, validations and checkpoints begin and end at different updates, and some at the same.
TASKS = {
    "gridworld": (
        24,
        "-c configs/gridworld.yaml --data.prompts_per_update=4 --data.train_prompts=12 --data.val_prompts=24 "
        "--data.eval_prompts=4 --model.group_size=4 --model.sampler.environment.max_steps=30 "
        "--model.optimization.minibatch_size=200 --model.optimization.kl_weight=0.01 "
        "--model.lr_scheduler=torch.optim.lr_scheduler.StepLR --model.lr_scheduler.step_size=4 "
        "--model.lr_scheduler.gamma=0.9 --trainer.val_check_interval=4 --callbacks.pictures=null "
        "--callbacks.checkpoints.every_n_train_steps=2",
    ),
    "language": (
        12,
        "-c configs/gsm8k.yaml --data.prompts_per_update=3 --data.train_prompts=15 --data.val_prompts=12 "
        "--data.eval_prompts=3 --model.group_size=4 --model.sampler.max_new_tokens=24 "
        "--model.optimization.epochs=2 --model.optimization.minibatch_size=4 "
        "--model.optimization.micro_batch_size=2 --trainer.val_check_interval=3 --callbacks.samples=null "
        "--callbacks.multipliers.every_n_updates=2 --callbacks.checkpoints.every_n_train_steps=1",
    ),
    "critic": (
        6,
        "-c configs/gridworld.yaml -c configs/ablations/gridworld/ppo_lagrangian.yaml --data.prompts_per_update=4 "
        "--data.train_prompts=12 --data.val_prompts=12 --data.eval_prompts=4 --model.group_size=4 "
        "--model.sampler.environment.max_steps=20 --model.optimization.minibatch_size=200 "
        "--model.estimator.learning.minibatch_size=200 --trainer.val_check_interval=2 --callbacks.pictures=null "
        "--callbacks.checkpoints.every_n_train_steps=1",
    ),
    "cartpole": (6, f"-c configs/cartpole.yaml {WORLDS}"),
    "pendulum": (4, f"-c configs/pendulum.yaml {WORLDS} --model.objective.constraints.hard.over=2"),
    "minigrid": (6, f"-c configs/minigrid_lava.yaml {WORLDS}"),
    "calculator": (
        4,
        "-c configs/calculator.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=6 "
        "--data.eval_prompts=2 --model.group_size=2 --model.sampler.max_new_tokens=32 --callbacks.samples=null "
        "--trainer.val_check_interval=2 --callbacks.checkpoints.every_n_train_steps=1",
    ),
    "sft": (
        6,
        "-c configs/gsm8k_sft.yaml --data.prompts_per_update=4 --data.train_prompts=16 --data.val_prompts=6 "
        "--data.eval_prompts=2 --model.sampler.max_new_tokens=8 --trainer.val_check_interval=2 "
        "--callbacks.checkpoints.every_n_train_steps=1",
    ),
    "navsim": (  # whose prompts a worker makes ahead
        4,
        "-c configs/navsim.yaml --data.prompts_per_update=2 --data.train_prompts=8 --data.val_prompts=6 "
        "--data.eval_prompts=2 --model.group_size=2 --model.eval_group_size=1 --model.sampler.max_new_tokens=16 "
        "--callbacks.samples=null "
        "--callbacks.drives=null --callbacks.scores=null --trainer.val_check_interval=2 "
        "--callbacks.checkpoints.every_n_train_steps=1",
    ),
}
PROCESSES = {"auto": 1, "ddp": 2, "fsdp2": 2}


@dataclass
class Trial:
    """A killed run and its outcome."""

    task: str
    strategy: str
    kind: str
    victims: list[int]
    killed_in: str
    statuses: list[int]
    resumed_at: int
    differences: list[str]


def arguments(task: str, strategy: str) -> list[str]:
    updates, options = TASKS[task]
    where = f"--trainer.devices={PROCESSES[strategy]} --trainer.strategy={strategy}"
    return ["fit", *shlex.split(f"{options} {COMMON} {where} --trainer.max_steps={updates}")]


class Run:
    """``python -m lightning_cgrpo`` on one process, or several with torchrun's environment.

    Processes fork from this process, because imports take most of a short run's time.
    """

    def __init__(self, folder: Path, task: str, strategy: str, *more: str) -> None:
        processes = PROCESSES[strategy]
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.statuses: dict[int, int] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": processes, "TORCHELASTIC_RUN_ID": 0}
        several |= {"LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0}
        self.processes = []
        for rank in range(processes):
            environment = several | {"RANK": rank, "LOCAL_RANK": rank} if processes > 1 else {}
            self.processes.append(self._fork([*arguments(task, strategy), *more], environment))

    def _fork(self, command: list[str], environment: dict[str, Any]) -> int:
        process = os.fork()
        if process:
            return process
        status: Any = 1
        try:
            os.chdir(self.folder)
            output = os.open("output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.environ.update({name: str(value) for name, value in environment.items()})
            sys.argv = ["lightning_cgrpo", *command]
            lightning_cgrpo.__main__.run()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)

    def ended(self) -> bool:
        for process in self.processes:
            if process not in self.statuses:
                process_id, status = os.waitpid(process, os.WNOHANG)
                if process_id:
                    self.statuses[process] = os.waitstatus_to_exitcode(status)
        return self.processes[0] in self.statuses

    def wait(self, patience: float = PATIENCE) -> bool:
        deadline = time.monotonic() + patience
        while (self.ended(), len(self.statuses))[1] < len(self.processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def finish(self) -> None:
        if not self.wait() or any(self.statuses.values()):
            text = (self.folder / "output.txt").read_text()
            raise RuntimeError(f"Expected a run to end, but got {self.statuses}: {text}")

    def until(self, reached: Callable[[], bool], pause: float) -> bool:
        """Wait for a condition, checked every `pause` seconds; False if the run ends first."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended() and time.monotonic() < deadline:
            if reached():
                return True
            time.sleep(pause)
        return False

    def kill(self, number: int, victims: list[int]) -> list[int]:
        """Send signal `number` to some processes by rank, and return all processes' exit statuses.

        After SIGTERM all end by themselves. After SIGKILL the others fail, or their starter ends them.
        """
        for rank in victims:
            os.kill(self.processes[rank], number)
        if not self.wait(PATIENCE if number == signal.SIGTERM else 5):
            for process in self.processes:
                if process not in self.statuses:
                    os.kill(process, signal.SIGKILL)
            self.wait()
        return [self.statuses[process] for process in self.processes]


def marks(folder: Path) -> list[str]:
    file = folder / "marks.txt"
    return file.read_text().splitlines() if file.exists() else []


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("runs/run/*/checkpoints/*.unfinished"))


def attempt(folder: Path, task: str, strategy: str, kind: str, draw: random.Random) -> dict[str, Any] | None:
    """Start and kill a run; return victims, last mark and statuses, or None if the kill missed its moment."""
    updates, processes = TASKS[task][0], PROCESSES[strategy]
    name, _, where = kind.partition(", ")
    victims = draw.choice([[0], [1], [0, 1]]) if processes > 1 else [0]
    run = Run(folder, task, strategy)
    chosen = draw.randrange(updates)
    if where == "validation":
        every = next(int(a.partition("=")[2]) for a in arguments(task, strategy) if "val_check_interval" in a)
        mark, batch = f"validation {draw.randrange(every, updates + 1, every)}", draw.randrange(1, 4)
        reached = run.until(lambda: marks(folder).count(mark) >= batch, 0.001)
    else:
        reached = run.until(lambda: f"update {chosen}" in marks(folder), 0.001)
        if where:
            reached = reached and run.until(lambda: bool(unfinished(folder)), 0)
        else:
            time.sleep(draw.uniform(0, 0.1))
    if not reached or run.ended():
        run.wait()
        return None
    statuses = run.kill(getattr(signal, name), victims)
    last = marks(folder)[-1]
    missed = {"validation": "validation" not in last, "checkpoint": not unfinished(folder)}.get(where, False)
    if missed or statuses[0] == 0:
        return None
    if name == "SIGTERM" and statuses != [128 + signal.SIGTERM] + [0] * (processes - 1):
        raise RuntimeError(f"Expected SIGTERM to end a run, but got {statuses}: {(folder / 'output.txt').read_text()}")
    return {"victims": victims, "killed_in": last, "statuses": statuses}


def trial(folder: Path, task: str, strategy: str, kind: str, draw: random.Random, whole: Path) -> Trial:
    for number in range(20):
        run = folder / str(number)
        killed = attempt(run, task, strategy, kind, draw)
        if killed is not None:
            break
    else:
        raise RuntimeError(f"Expected to meet a run in '{kind}', but it never was.")
    # A directory may have been about to give way to the next one.
    saved = sorted(run.glob("runs/run/*/checkpoints/last.ckpt*"))
    at = read(saved[0])["global_step"] if saved else 0
    Run(run, task, strategy, *(["--ckpt_path=last"] if saved else [])).finish()
    different = list(differences(run, whole))
    if saved:
        different += [f"{path.name} is left" for path in unfinished(run)]
    return Trial(task, strategy, kind, **killed, resumed_at=at, differences=different)


def main(argv: list[str] | None = None) -> list[Trial]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill, to do some of them only")
    parser.add_argument("--step", type=int, default=1, help="from one kill's number to the next one's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="in turn on one process, instead of the two in turn")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(argv)
    lightning_cgrpo.cli.preparation.prepare("fit", {})  # imports all there is, for the processes that are forked
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="kill_loop") as name:
        folder, whole = Path(name), {}
        for number in range(options.first, options.first + options.kills * options.step, options.step):
            if options.tasks:
                kind = KINDS[number // len(options.tasks) % len(KINDS)]
                task, strategy = options.tasks[number % len(options.tasks)], "auto"
            else:
                kind, (task, strategy) = KINDS[number // 4 % len(KINDS)], _setting(number)
            if (task, strategy) not in whole:
                whole[task, strategy] = folder / f"{task}_{strategy}"
                Run(whole[task, strategy], task, strategy).finish()
            draw = random.Random(f"{options.seed} {number}")
            outcome = trial(folder / f"kill{number}", task, strategy, kind, draw, whole[task, strategy])
            trials.append(outcome)
            verdict = "equal" if not outcome.differences else f"{len(outcome.differences)} differences"
            print(
                f"{number:3} {task:10} {strategy:5} {kind:21} {outcome.victims!s:6} in {outcome.killed_in:13} "
                f"{outcome.statuses!s:10} resumed at {outcome.resumed_at:2}: {verdict}",
                *outcome.differences[:5],
                sep="\n      ",
                flush=True,
            )
    equal = sum(not trial.differences for trial in trials)
    print(f"{equal} of {len(trials)} equal")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"equal": equal, "kills": len(trials), "trials": [asdict(trial) for trial in trials]}
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    return trials


def _setting(number: int) -> tuple[str, str]:
    task = ("gridworld", "language")[number % 2]
    several = "ddp" if task == "gridworld" or number // 4 % 2 else "fsdp2"
    return task, several if number // 2 % 2 else "auto"


if __name__ == "__main__":
    sys.exit(any(trial.differences for trial in main()))
