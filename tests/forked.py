"""Processes forked from one that has imported the package, because a new interpreter takes seconds to do so."""

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any


def server() -> ForkServerContext:
    """Forks a process that has imported what a run imports, and has run no test."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    return context


@contextmanager
def forked(
    function: Callable[..., Any], *arguments: Any, output: Path, environment: Mapping[str, str] | None = None
) -> Iterator[ForkServerProcess]:
    """Calls a function in a process whose output goes to a file; a status is returned, as by `sys.exit`."""
    given = (function, arguments, output, os.environ | (environment or {}), Path.cwd())
    process = server().Process(target=_call, args=given)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(10)


def _call(
    function: Callable[..., Any], arguments: tuple[Any, ...], output: Path, environment: Mapping[str, str], folder: Path
) -> None:
    from lightning.pytorch.utilities import rank_zero_only

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # Lightning reads the rank when it is imported, before this process was forked.
    rank_zero_only.rank = int(environment.get("RANK", environment.get("LOCAL_RANK", 0)))  # type: ignore[attr-defined]
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(function(*arguments))


def run_module(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, **_: Any) -> Any:
    """As `subprocess.run` of ``python -m MODULE ARGUMENTS`` does, which captures texts; the errors' text is empty."""
    assert command[0] == sys.executable and command[1] == "-m"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        with forked(_run_module, command[2:], cwd, output=output, environment=env) as process:
            process.join(timeout)
            status = process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, status, output.read_text(), "")


def _run_module(arguments: Sequence[str], folder: Path) -> None:
    os.chdir(folder)
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def run_script(script: Path, *arguments: object) -> None:
    """As ``python SCRIPT ARGUMENTS`` does."""
    sys.argv = [str(script), *map(str, arguments)]
    runpy.run_path(str(script), run_name="__main__")
