"""Train each run in its own process: here, or as cluster jobs."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from lightning_cgrpo.cli.configuration import ConfigError
from lightning_cgrpo.cli.run_files import PROGRESS_FILE
from lightning_cgrpo.cli.run_folders import last_checkpoint
from lightning_cgrpo.errors import UserError, first_line, installing
from lightning_cgrpo.studies.ledger import OUTPUT, PROGRESS, begun, finish, note
from lightning_cgrpo.studies.processes import Children, Ended, Stopped
from lightning_cgrpo.studies.study import FOLDER, SHELL, Run, configuration

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ERROR = "lightning_cgrpo: error: "
GENERIC = ("timeout_min", "mem_gb", "gpus_per_node", "cpus_per_task", "nodes", "tasks_per_node")
"""Job parameters that submitit knows for every cluster; others are SLURM's."""

After = Sequence[tuple[str, ...]]
Outcome = tuple[Run, str | None]
"""An ended run, with its error if it failed."""


def execute(run: Run, after: After, children: Children) -> str | None:
    """Train or resume a run, then run its `after` commands; return an error, if any.

    Raises:
        Stopped: if the study was stopped.
    """
    if children.stopped:
        raise Stopped
    record = begun(run) or {}
    record.pop("error", None)
    environment = {**ONE_THREAD, "RUN_FOLDER": str(run.folder)}
    if not record.get("trained"):
        resume: list[str] = []
        if record:
            with contextlib.suppress(ConfigError):  # The run was interrupted before its first checkpoint.
                resume = [f"--ckpt_path={last_checkpoint(configuration(run))}"]
        note(run, record)
        told = {PROGRESS_FILE: str((run.folder / PROGRESS).absolute())}
        ended, error = _call(run, children, _command(("fit", *run.arguments, *resume)), {**environment, **told})
        record |= _added(record, ended)
        record["trained"] = error is None
        note(run, record if error is None or children.stopped else {**record, "error": error})
        if children.stopped:
            raise Stopped
        if error is not None:
            return error
    for words in after:
        line = words[1] if words[0] == SHELL else _command((words[0], *run.arguments, *_filled(words[1:], run)))
        _, error = _call(run, children, line, environment)
        if children.stopped:
            raise Stopped
        if error is not None:
            note(run, {**record, "error": error})
            return error
    finish(run, {key: record[key] for key in ("seconds", "cpu_seconds", "peak_mb")})
    return None


def here(runs: Sequence[Run], after: After, at_once: int) -> Generator[Outcome, None, None]:
    """Train runs on this machine, `at_once` in parallel; yield each as it ends.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once all children have ended.
    """
    from joblib import Parallel, delayed

    children = Children()

    def one(run: Run) -> tuple[Run, str | None, bool]:
        try:
            return run, execute(run, after, children), True
        except OSError as error:
            return run, str(error), True
        except Stopped:
            return run, None, False

    parallel = Parallel(at_once, backend="threading", return_as="generator_unordered", batch_size=1)
    with ending(children):
        for run, error, ended in parallel(delayed(one)(run) for run in runs):
            if ended:
                yield run, error
    if children.stopped:
        raise KeyboardInterrupt


def on_cluster(runs: Sequence[Run], after: After, at_once: int | None, given: str) -> Generator[Outcome, None, None]:
    """Train runs as SLURM jobs; yield each as it ends.

    Args:
        given: job settings, ``partition=gpu,time=60``.

    Raises:
        UserError: if submitit is missing, or refuses a setting.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise UserError(f"Expected submitit for --slurm, but it is not installed, try {installing('slurm')}.") from None
    settings = _settings(given)
    cluster = settings.pop("cluster", "slurm")
    if at_once is not None:
        settings["array_parallelism"] = at_once
    parameters = {key if key in GENERIC else f"slurm_{key}": value for key, value in settings.items()}
    try:
        executor = submitit.AutoExecutor(f"{runs[0].logs}/jobs", cluster=cluster)
        executor.update_parameters(**{"slurm_job_name": "study", "cpus_per_task": 1, **parameters})
    except (ValueError, NameError, AssertionError, RuntimeError, TypeError) as error:
        raise UserError(f"Expected settings of SLURM's jobs, but got --slurm {given} ({first_line(error)}).") from None
    with executor.batch():
        jobs = [executor.submit(job, run, tuple(after)) for run in runs]
    names = dict(zip((found.job_id for found in jobs), runs, strict=True))
    waiting = list(jobs)
    try:
        for ended in submitit.helpers.as_completed(jobs, poll_frequency=2):
            waiting.remove(ended)
            failure = ended.exception()
            told = ended.result() if failure is None else f"{type(failure).__name__}: {first_line(failure)}"
            yield names[ended.job_id], told
    finally:
        for left in waiting:
            left.cancel(check=False)


def job(run: Run, after: After) -> str | None:
    """Train a run in a cluster job; see `execute`."""
    children = Children()
    with ending(children):
        try:
            return execute(run, after, children)
        except Stopped:
            return "stopped"


@contextlib.contextmanager
def ending(children: Children) -> Iterator[None]:
    """Context that ends the children on Ctrl-C, SIGTERM or an error; threads that wait for a child then continue."""

    def end(*_: Any) -> None:
        children.terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException:
        children.terminate()
        raise
    finally:
        children.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "lightning_cgrpo", *words]


def _filled(words: Sequence[str], run: Run) -> list[str]:
    return [word.replace(FOLDER, str(run.folder)) for word in words]


def _call(
    run: Run, children: Children, command: list[str] | str, environment: Mapping[str, str]
) -> tuple[Ended, str | None]:
    """Run a command with output in the run's folder; the text is the error, None on success."""
    output = run.folder / OUTPUT
    with output.open("ab") as file:
        begins = file.tell()
        file.write(f"+ {command if isinstance(command, str) else ' '.join(command[1:])}\n".encode())
    ended = children.call(command, output, environment)
    if ended.status == 0:
        return ended, None
    if ended.status < 0:
        name = signal.Signals(-ended.status).name
        return ended, f"ended by {name}{', which a lack of memory causes' if name == 'SIGKILL' else ''}"
    with output.open("rb") as file:
        file.seek(begins)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    # The error of the command line may be followed by the place of the traceback.
    told = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)] or lines
    return ended, told[-1]


def _added(record: Mapping[str, Any], ended: Ended) -> dict[str, float]:
    return {
        "seconds": round(record.get("seconds", 0.0) + ended.seconds, 1),
        "cpu_seconds": round(record.get("cpu_seconds", 0.0) + ended.cpu_seconds, 1),
        "peak_mb": round(max(record.get("peak_mb", 0.0), ended.peak_mb)),
    }


def _settings(given: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in given.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UserError(f"Expected --slurm KEY=VALUE,…, such as partition=gpu,time=60, but got '{part}'.")
        settings[key.strip()] = int(value) if value.isdecimal() else value
    return settings
