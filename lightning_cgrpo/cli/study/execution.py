"""Train each run in its own process."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lightning_cgrpo.cli.study.state import (
    After,
    commands_left,
    is_trained,
    last_checkpoint,
    progress,
    write_notes,
)
from lightning_cgrpo.cli.study.study import Run

OUTPUT = "output.txt"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FOLDER = "RUN_FOLDER"
"""Environment variable of the run's folder; ``$RUN_FOLDER`` stands for the folder in `after`."""
ERROR = "lightning_cgrpo: error: "

Outcome = tuple[Run, str | None]
"""An ended run, with its error if it failed."""


class Stopped(Exception):  # noqa: N818
    """The study was stopped."""


class Children:
    """Child processes; a thread waits for each."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False

    def call(self, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> int:
        """Run a command, appending its output to a file; return its exit status.

        Raises:
            Stopped: if `stop` was called before or meanwhile.
        """
        if self.stopped:
            raise Stopped
        # Lightning would join a run to SLURM's whole job.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        with output.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**inherited, **environment},
                # A group of its own, so that Ctrl-C on a terminal reaches a child once.
                start_new_session=True,
            )
        self._running.add(process)
        if self.stopped:  # A signal came while the process started.
            process.terminate()
        status = process.wait()
        self._running.remove(process)
        if self.stopped:
            raise Stopped
        return status

    def stop(self, *_: Any) -> None:
        """Handle a signal: children end, runs after their update; a second call kills them."""
        number = signal.SIGKILL if self.stopped else signal.SIGTERM
        self.stopped = True
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def train_here(runs: Sequence[Run], after: After, at_once: int) -> Generator[Outcome, None, None]:
    """Train runs on this machine, `at_once` in parallel; yield each as it ends.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once all children have ended.
    """
    children = Children()
    # Signals stop the children. The handlers of before come back at the end.
    handlers = {number: signal.signal(number, children.stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(at_once) as pool:
            tasks = {pool.submit(execute, run, after, children): run for run in runs}
            try:
                for task in as_completed(tasks):
                    with contextlib.suppress(Stopped):
                        yield tasks[task], task.result()
            except BaseException:
                children.stop()
                raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if children.stopped:
        raise KeyboardInterrupt


def execute(run: Run, after: After, children: Children) -> str | None:
    """Train or resume a run, then run its `after` commands; return an error, if any.

    Raises:
        Stopped: if the study was stopped.
    """
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(run.folder / ".lock", timeout=0):
            environment = {**ONE_THREAD, FOLDER: str(run.folder)}
            error = _train_run(run, children, environment)
            if error is not None:
                write_notes(run, error=error)
                return error
            return _run_commands_after(run, after, children, environment)
    except Timeout:
        return "another process trains this run"
    except OSError as error:
        return str(error)


def _train_run(run: Run, children: Children, environment: Mapping[str, str]) -> str | None:
    """Train or resume a run that is not trained; return an error, if any."""
    if is_trained(run):
        return None
    write_notes(run)
    # A run with other prompts or code is trained anew.
    checkpoint = last_checkpoint(run)
    resume = [] if checkpoint is None else [f"--ckpt_path={checkpoint}"]
    error = _call_command(run, children, _python_command(("fit", *run.arguments, *resume)), environment)
    if error is None and not is_trained(run):
        done, asked = progress(run)
        return f"its process ended without an error after {done:,} of {asked or '?'} updates"
    return error


def _run_commands_after(run: Run, after: After, children: Children, environment: Mapping[str, str]) -> str | None:
    """Run the commands after training that have not ended well; each is noted, so that no restart repeats it."""
    remaining = commands_left(run, after)
    ended = [shlex.join(words) for words in after if words not in remaining]
    write_notes(run, after=ended)
    for words in remaining:
        command_name, *command_arguments = words
        filled = [word.replace(f"${FOLDER}", str(run.folder)) for word in command_arguments]
        error = _call_command(run, children, _python_command((command_name, *run.arguments, *filled)), environment)
        if error is None:
            ended.append(shlex.join(words))
        write_notes(run, error=error, after=ended)
        if error is not None:
            return error
    return None


def _python_command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "lightning_cgrpo", *words]


def _call_command(run: Run, children: Children, command: list[str], environment: Mapping[str, str]) -> str | None:
    """Run a command with output in the run's folder; the text is the error, None on success."""
    output = run.folder / OUTPUT
    with output.open("ab") as file:
        beginning = file.tell()
        file.write(f"+ {' '.join(command[1:])}\n".encode())
    status = children.call(command, output, environment)
    if status == 0:
        return None
    if status < 0:  # A signal ended the process.
        name = signal.Signals(-status).name
        cause = ", which a lack of memory causes" if name == "SIGKILL" else ""
        return f"ended by {name}{cause}"
    with output.open("rb") as file:
        file.seek(beginning)
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The error of the command line may be followed by the place of the traceback.
    errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    return errors[-1] if errors else lines[-1]
