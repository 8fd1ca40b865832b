"""Train each run in its own process."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from filelock import FileLock, Timeout

from lightning_cgrpo.cli.configuration import ConfigError
from lightning_cgrpo.cli.run_folders import last_checkpoint
from lightning_cgrpo.studies.children import Children, Stopped, ending
from lightning_cgrpo.studies.state import note, progress, trained, version
from lightning_cgrpo.studies.study import SHELL, Run, configuration

OUTPUT = "output.txt"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FOLDER = "RUN_FOLDER"
"""Environment variable of the run's folder; ``$RUN_FOLDER`` stands for the folder in `after`."""
ERROR = "lightning_cgrpo: error: "

After = Sequence[tuple[str, ...]]
Outcome = tuple[Run, str | None]
"""An ended run, with its error if it failed."""


def execute(run: Run, after: After, children: Children) -> str | None:
    """Train or resume a run, then run its `after` commands; return an error, if any.

    Raises:
        Stopped: if the study was stopped.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(run.folder / ".lock", timeout=0):
            return _execute(run, after, children)
    except Timeout:
        return "another process trains this run"


def _execute(run: Run, after: After, children: Children) -> str | None:
    environment = {**ONE_THREAD, FOLDER: str(run.folder)}
    error = None
    note(run)
    if not trained(run):
        resume: list[str] = []
        if version(run) is not None:
            with contextlib.suppress(ConfigError):  # The run was interrupted before its first checkpoint.
                resume = [f"--ckpt_path={last_checkpoint(configuration(run))}"]
        error = _call(run, children, _command(("fit", *run.arguments, *resume)), environment)
        if error is None and not trained(run):
            done, asked = progress(run)
            error = f"its process ended without an error after {done:,} of {asked or '?'} updates"
    for words in after:
        if error is None:
            filled = [word.replace(f"${FOLDER}", str(run.folder)) for word in words[1:]]
            line = words[1] if words[0] == SHELL else _command((words[0], *run.arguments, *filled))
            error = _call(run, children, line, environment)
    note(run, error=error, done=error is None)
    return error


def here(runs: Sequence[Run], after: After, at_once: int) -> Generator[Outcome, None, None]:
    """Train runs on this machine, `at_once` in parallel; yield each as it ends.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once all children have ended.
    """
    children = Children()
    with ThreadPoolExecutor(at_once) as pool, ending(children):
        waiting = {pool.submit(execute, run, after, children): run for run in runs}
        for ended in as_completed(waiting):
            with contextlib.suppress(Stopped):
                try:
                    yield waiting[ended], ended.result()
                except OSError as error:
                    yield waiting[ended], str(error)
    if children.stopped:
        raise KeyboardInterrupt


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "lightning_cgrpo", *words]


def _call(run: Run, children: Children, command: list[str] | str, environment: Mapping[str, str]) -> str | None:
    """Run a command with output in the run's folder; the text is the error, None on success."""
    output = run.folder / OUTPUT
    with output.open("ab") as file:
        begins = file.tell()
        file.write(f"+ {command if isinstance(command, str) else ' '.join(command[1:])}\n".encode())
    status = children.call(command, output, environment)
    if status == 0:
        return None
    if status < 0:
        name = signal.Signals(-status).name
        return f"ended by {name}{', which a lack of memory causes' if name == 'SIGKILL' else ''}"
    with output.open("rb") as file:
        file.seek(begins)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    # The error of the command line may be followed by the place of the traceback.
    told = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)] or lines
    return told[-1]
