"""Tests on a copy of the repository, in forks of a process that has imported all libraries."""

import compileall
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import hypothesis
import pytest

LIBRARIES = (
    *("torch", "torch._dynamo", "torch.utils.tensorboard", "lightning", "torchmetrics", "jsonargparse", "omegaconf"),
    *("transformers", "transformers.models.auto.modeling_auto", "peft", "trl", "datasets", "accelerate", "safetensors"),
    *("numpy", "scipy.stats", "scipy.optimize", "shapely", "gymnasium", "matplotlib.pyplot", "matplotlib.tri"),
)
"""Imported once; one that is not installed is left out."""
ENOUGH = 40.0
"""CPU seconds after which no further test begins."""
SHARE = 15.0
"""CPU seconds after which no further test of a file begins, so that one slow file leaves time for others."""
TOO_LONG = 10.0
"""CPU seconds after which a test is late, if its loops have no end; fast tests take one."""
LONGEST = 300.0
"""Seconds of the clock until a fork is killed, because its tests wait for each other."""


@dataclass
class Outcome:
    """How tests ended.

    Args:
        result: "survived" if all passed; "time-out" if all others passed; else "assertion", "exception" or "crash".
        failed: the tests that failed, by their pytest names.
        ran: the files and tests that were given to pytest.
        seconds: CPU seconds of the fork.
    """

    result: str = "survived"
    failed: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    seconds: float = 0.0


class TimedOut(BaseException):
    """A test is late; code that catches exceptions lets it through."""


class _Watch:
    """A pytest plugin that says how tests fail.

    Args:
        to_the_end: tests go on after a failure, and without a limit of CPU seconds.
    """

    def __init__(self, to_the_end: bool) -> None:
        self.to_the_end = to_the_end
        self.outcome = Outcome()

    def is_done(self, limit: float) -> bool:
        """A test has killed the mutant, or the CPU seconds are over."""
        return self.outcome.result not in ("survived", "time-out") or _used() > limit

    def pytest_sessionstart(self) -> None:
        self.began = _used()

    def pytest_collection(self) -> None:
        # The same examples each time, and no search for a smaller example.
        phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fails(report.nodeid, "exception")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, TOO_LONG, TOO_LONG)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            asserted = isinstance(call.excinfo.value, AssertionError | pytest.fail.Exception)
            shown = "Failure" in type(call.excinfo.value).__name__  # of a docstring's example
            late = isinstance(call.excinfo.value, TimedOut)
            self._fails(item.nodeid, "time-out" if late else "assertion" if asserted or shown else "exception")
        if call.when == "teardown":
            signal.setitimer(signal.ITIMER_PROF, 0)
            item.session.shouldstop = not self.to_the_end and self.is_done(self.began + SHARE)
        return report

    def _fails(self, name: str, result: str) -> None:
        self.outcome.failed.append(name)
        if self.outcome.result in ("survived", "time-out"):
            self.outcome.result = result


def _used() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _raise(*_: object) -> None:
    raise TimedOut


def import_libraries() -> None:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)


class Trials:
    """A copy of the repository, in which a file may be changed.

    Args:
        root: the repository.
        folder: an empty folder for the copy. Real data that lie beside the repository lie beside the copy, too.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self.copy = folder / "repository"
        unneeded = shutil.ignore_patterns(".git", ".*_cache", ".venv")
        shutil.copytree(root, self.copy, symlinks=True, ignore=unneeded)
        (folder / "shared").symlink_to(root.parent / "shared")
        compileall.compile_dir(self.copy, quiet=2)

    @contextlib.contextmanager
    def changed(self, file: str, source: bytes) -> Iterator[None]:
        """The copy with another source of a file."""
        path = self.copy / file
        original, times = path.read_bytes(), path.stat()
        path.write_bytes(source)
        # Python knows compiled code by a file's size and second, and forks write none.
        os.utime(path, (0, 0))
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def run(self, tests: Sequence[str], without: Sequence[str] = (), to_the_end: bool = False) -> Outcome:
        """Run tests in a fork, until one fails or the time is over.

        Args:
            tests: paths or names, in their order.
            without: names of tests to leave out.
            to_the_end: run all, whether they fail or not.
        """
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outcome = self._run(tests, without, _Watch(to_the_end))
                os.write(tells, json.dumps(asdict(outcome)).encode())
            finally:
                os._exit(0)
        os.close(tells)
        deadline = time.monotonic() + LONGEST * (10 if to_the_end else 1)
        done = 0
        while not done and time.monotonic() < deadline:
            time.sleep(0.02)
            done, _, used = os.wait4(child, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and the processes that it started
        if not done:
            _, _, used = os.wait4(child, 0)
        with open(told, "rb") as pipe:
            text = pipe.read()
        outcome = Outcome(**json.loads(text)) if text else Outcome("crash" if done else "time-out")
        outcome.seconds = used.ru_utime + used.ru_stime
        return outcome

    def _run(self, tests: Sequence[str], without: Sequence[str], watch: _Watch) -> Outcome:
        """The fork's part, which prints nothing."""
        os.setpgid(0, 0)
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        os.chdir(self.copy)
        os.environ |= {"PYTHONPATH": str(self.copy), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        # The copy's packages and tests in the place of the repository's, also for processes that tests start.
        sys.path.insert(0, str(self.copy))
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        options = [f"-p no:{plugin}" for plugin in ("cacheprovider", "terminal", "faulthandler")]
        options += ["-n", "0", f"--basetemp={self.folder}/tests", *(f"--deselect={name}" for name in without)]
        signal.signal(signal.SIGPROF, _raise)
        limit = _used() + ENOUGH
        for part in [list(tests)] if watch.to_the_end else [[test] for test in tests]:
            # Tests of one file may share what takes long, so a file is run at once.
            watch.outcome.ran += part
            pytest.main([*options, *part], plugins=[watch])
            if watch.is_done(limit):
                break
        return watch.outcome
