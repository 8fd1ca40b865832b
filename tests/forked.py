"""Processes forked from one that has imported the package, because a new interpreter takes seconds to do so."""

import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

IMPORTED = ["lightning_cgrpo.cli.command_line", "lightning_cgrpo.policies.vision_language", "peft", "tensorboard"]


def server() -> ForkServerContext:
    """Forks a process of `IMPORTED` modules, which runs no test before."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
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
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    output: Path,
    environment: Mapping[str, str],
    folder: Path,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(function(*arguments))


def run_script(script: Path, *arguments: object) -> None:
    """As ``python SCRIPT ARGUMENTS`` does."""
    sys.argv = [str(script), *map(str, arguments)]
    runpy.run_path(str(script), run_name="__main__")
