"""Change the core in one place at a time, and run the tests that run the place: ``python -m tests.mutants``.

Who kills a mutant is any fast test of `TESTS`. They are collected once. A mutant is a fork of the process that has
collected them: it gets the changed function's code and stops at the first test that fails. A first fork runs all tests
as they are, and records the lines that each runs and its CPU time; its record is read again with --record.

The mutants of a seed are those whose names have the smallest hashes, so other code can change without changing them.
`score.json` has their score by file, and the survivors. `equivalent.json` names mutants that change no behavior, each
with the reason; they are not run.
"""

import argparse
import contextlib
import fnmatch
import functools
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

from tests.mutants.changes import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CORE = (
    "lightning_cgrpo/core/rollout.py",
    "lightning_cgrpo/core/randomness.py",
    "lightning_cgrpo/core/copies.py",
    *(
        f"lightning_cgrpo/{room}/*.py"
        for room in ("grpo", "modules", "multipliers", "objective", "policies", "samplers")
    ),
    "lightning_cgrpo/trl.py",
    *(
        f"lightning_cgrpo/callbacks/{name}.py"
        for name in ("lagrangian", "weight_setter", "fixed_weights", "checkpoints")
    ),
    *(f"navsim_score/{room}/*.py" for room in ("scoring", "simulation", "route", "expert", "geometry")),
    "navsim_score/scorer.py",
)
# They need a GPU or a vLLM server; a model that tests alone have.
WITHOUT = ("*/shared_prefix/varlen.py", "*/vllm/nccl_push.py", "*/vllm/ipc_push.py", "*/policies/tiny/*")
TESTS = (
    *(f"tests/{room}" for room in ("grpo", "objective", "multipliers", "policies", "samplers", "modules", "callbacks")),
    *("tests/core", "tests/checkpoints", "tests/navsim_score", "tests/tasks", "tests/datamodules"),
    *("lightning_cgrpo/core", "lightning_cgrpo/grpo", "lightning_cgrpo/objective", "lightning_cgrpo/multipliers"),
    *("lightning_cgrpo/policies", "lightning_cgrpo/samplers", "lightning_cgrpo/modules", "navsim_score"),
    *(f"tests/test_{name}.py" for name in ("update_by_hand", "theorems", "trl", "plain_example", "own_parts", "seeds")),
)
# CPU seconds of a mutant's tests. Tests of the same room come first, and files that take less time.
ENOUGH = 60.0


class Mutants:
    """A pytest plugin that runs mutants in the place of tests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.failed = False

    def pytest_collection(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        recorded = self._recorded(session.items)
        for name in recorded["modules"]:
            _import(name)
        known = {name for names in json.loads((HERE / "equivalent.json").read_text()).values() for name in names}
        functions = _functions()
        gc.freeze()  # collections in forks would copy the memory
        results = {}
        forks = Forks(self.arguments.processes)
        for mutant in self._chosen():
            if mutant.name in known:
                results[mutant] = "equivalent"
                continue
            tests = self._tests(mutant, session.items, recorded["tests"])
            if not tests:
                results[mutant] = "not run by a test"
                continue
            seconds = sum(recorded["tests"][item.nodeid]["seconds"] for item in tests)
            run = functools.partial(self._run, mutant, functions, tests, recorded["tests"])
            forks.start(mutant, run, limit=120 + 20 * seconds)
        results |= forks.end()
        _write(results, self.arguments)
        return True

    def _recorded(self, items: list[pytest.Item]) -> dict[str, Any]:
        """Seconds and lines of every test, and the modules that the tests import."""
        file = self.arguments.record
        if not file.exists():
            forks = Forks(self.arguments.processes)
            parts = [file.with_suffix(f".{number}.json") for number in range(self.arguments.processes)]
            for number, part in enumerate(parts):
                own = [item for item in items if zlib.crc32(str(item.path).encode()) % len(parts) == number]
                forks.start(part, functools.partial(self._record, own, part), limit=7200)
            forks.end()
            read = [json.loads(part.read_text()) for part in parts]
            tests = {name: test for part in read for name, test in part["tests"].items()}
            modules = sorted({name for part in read for name in part["modules"]})
            file.write_text(json.dumps({"tests": tests, "modules": modules}))
        return json.loads(file.read_text())

    def _chosen(self) -> list[Mutant]:
        found = [mutant for file in core_files() for mutant, _ in mutants_of(ROOT / file, file)]
        found.sort(key=lambda mutant: hashlib.sha256(f"{self.arguments.seed} {mutant.name}".encode()).digest())
        chosen = [mutant for mutant in found[: self.arguments.count] if self.arguments.only in mutant.name]
        return sorted(chosen, key=lambda mutant: (mutant.file, mutant.lines.start))

    # ------------------------------------------------------------------ which test runs which line

    def _record(self, items: list[pytest.Item], part: Path) -> int:
        files = {str(ROOT / file): file for file in core_files()}
        tests = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            lines: dict[str, set[int]] = defaultdict(set)

            def trace(frame: FrameType, event: str, _: Any, lines: Any = lines) -> Any:
                file = files.get(frame.f_code.co_filename)
                if file is None:
                    return None
                noted = lines[file]

                def note(frame: FrameType, event: str, _: Any) -> Any:
                    noted.add(frame.f_lineno)
                    return note

                return note

            self.failed = False
            began = time.process_time()
            sys.settrace(trace)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            seconds = time.process_time() - began
            print(
                f"{'fails without a change' if self.failed else 'recorded'}: {seconds:.2f} s {item.nodeid}", flush=True
            )
            if lines and not self.failed:
                tests[item.nodeid] = {"seconds": seconds, "lines": {file: sorted(of) for file, of in lines.items()}}
        modules = [name for name in sys.modules if not name.startswith("tests")]
        part.write_text(json.dumps({"tests": tests, "modules": modules}))
        return 0

    # ------------------------------------------------------------------ a mutant

    def _run(self, mutant: Mutant, functions: Any, tests: list[pytest.Item], recorded: dict[str, Any]) -> int:
        """Run tests until one fails; 0 if none does."""
        code = _code(mutant)
        for function in functions[mutant.file, mutant.function, mutant.first_line]:
            function.__code__ = code
        self.failed = False
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            # CPU seconds: the signal ends the fork, if a loop has no end.
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * recorded[item.nodeid]["seconds"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0

    def _tests(self, mutant: Mutant, items: list[pytest.Item], recorded: dict[str, Any]) -> list[pytest.Item]:
        """Tests that run the changed lines, file by file."""
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            lines = recorded.get(item.nodeid, {"lines": {}})["lines"].get(mutant.file, ())
            if not set(mutant.lines).isdisjoint(lines):
                files[item.nodeid.partition("::")[0]].append(item)
        room = Path(mutant.file).parent.name
        seconds = {file: sum(recorded[item.nodeid]["seconds"] for item in own) for file, own in files.items()}
        in_order = sorted(files, key=lambda file: (room not in Path(file).parts, seconds[file]))
        chosen: list[pytest.Item] = []
        left = ENOUGH
        for file in in_order:
            for item in files[file]:
                left -= recorded[item.nodeid]["seconds"]
                if left > 0 or not chosen:
                    chosen.append(item)
        return chosen


def core_files() -> list[str]:
    found = []
    for pattern in CORE:
        folder, _, name = pattern.rpartition("/")
        found += [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob(name))]
    return [file for file in found if not any(fnmatch.fnmatch(file, without) for without in WITHOUT)]


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the core by file, name and first line."""
    for file in core_files():
        _import(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    files = {str(ROOT / file): file for file in core_files()}
    found = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename in files:
            code = thing.__code__
            found[files[code.co_filename], code.co_qualname, code.co_firstlineno].append(thing)
    return found


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # a module that a test made up, or that is gone
        print(f"not imported: {name} ({type(error).__name__})", flush=True)


def _code(mutant: Mutant) -> CodeType:
    """The changed function, compiled."""
    path = ROOT / mutant.file
    tree = next(tree for other, tree in mutants_of(path, mutant.file) if other == mutant)
    waiting = [compile(tree, str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line):
            return code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise AssertionError(mutant.name)


class Forks:
    """Forks of this process, a few at a time."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._running: dict[int, tuple[Any, float]] = {}
        self._results: dict[Any, str] = {}

    def start(self, name: Any, function: Callable[[], int], limit: float) -> None:
        """Call a function in a fork, which ends with its status, and is killed after `limit` seconds."""
        self._wait(self.processes - 1)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                os._exit(function())
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(2)
        self._running[child] = name, time.monotonic() + limit

    def end(self) -> dict[Any, str]:
        """By name, whether the fork's function returned 0, as where all tests pass."""
        self._wait(0)
        return self._results

    def _wait(self, most: int) -> None:
        while len(self._running) > most:
            for child, (name, deadline) in list(self._running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended or time.monotonic() > deadline:
                    self._finish(child, name, status if ended else None)
            time.sleep(0.02)

    def _finish(self, child: int, name: Any, status: int | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and the processes that it started
        if status is None:
            os.waitpid(child, 0)
        del self._running[child]
        self._results[name] = "survived" if status == 0 else "killed"
        print(f"{self._results[name]:8} {getattr(name, 'name', name)}", flush=True)


def _write(results: dict[Mutant, str], arguments: argparse.Namespace) -> None:
    total = Counter(results.values())
    changing = total.total() - total["equivalent"]
    score = f"{total['killed']} of {changing}, {total['killed'] / max(changing, 1):.1%}"
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    minutes = sum(times.ru_utime + times.ru_stime for times in used) / 60
    print(f"Killed: {score}, in {minutes:.1f} CPU minutes")
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, result in results.items():
        files[mutant.file][result] += 1
    left = [mutant for mutant, result in results.items() if result not in ("killed", "equivalent")]
    written = {
        "seed": arguments.seed,
        "killed": score,
        "equivalent": total["equivalent"],
        "survivors": [f"{mutant.name}  (line {mutant.lines.start}: {results[mutant]})" for mutant in left],
        "files": {file: dict(counts) for file, counts in sorted(files.items())},
    }
    if not arguments.only:
        arguments.score.write_text(json.dumps(written, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only", default="", help="run only the mutants whose names hold this text, and write no score"
    )
    parser.add_argument("--record", type=Path, default=ROOT / ".pytest_cache" / "mutants.json")
    parser.add_argument("--score", type=Path, default=HERE / "score.json")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    arguments.record.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-n", "0", "-p", "no:cacheprovider", "-p", "no:terminal", f"--basetemp={folder}/tests"]
        sys.exit(pytest.main([*options, *TESTS], plugins=[Mutants(arguments)]))


if __name__ == "__main__":
    main()
