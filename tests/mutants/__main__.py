"""Change the core in one place at a time, and see whether a test fails: ``python -m tests.mutants``.

- The core is `CORE`, and its tests are the fast tests of `TESTS`. One process collects them.
- A first fork for each of --processes runs the tests as they are, and records each test's lines and CPU seconds. Later
  runs read the record, and add new tests; a change of the core begins a new record.
- A mutant is a fork that gets the changed code of one function, and runs the tests of its lines until one fails.
  Tests of the same room come first, then the quickest files, up to `ENOUGH` seconds.
- The mutants of a seed are those whose names have the smallest hashes, so other code can change without changing them.
- `score.json` has the score by file, and the survivors. `equivalent.json` names mutants that change no behavior, by
  reason; they are not run.
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
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

from tests.mutants.changes import Mutant, code_of, mutants_of
from tests.mutants.forks import Forks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = ROOT / ".pytest_cache" / "mutants.jsonl"
ROOMS = "grpo", "modules", "multipliers", "objective", "policies", "samplers"
CORE = (
    *(f"lightning_cgrpo/core/{name}.py" for name in ("copies", "randomness", "rollout")),
    *(f"lightning_cgrpo/{room}/*.py" for room in ROOMS),
    "lightning_cgrpo/trl.py",
    *(
        f"lightning_cgrpo/callbacks/{name}.py"
        for name in ("checkpoints", "fixed_weights", "lagrangian", "weight_setter")
    ),
    *(f"navsim_score/{room}/*.py" for room in ("expert", "geometry", "route", "scoring", "simulation")),
    "navsim_score/scorer.py",
)
# They need a GPU or a vLLM server; a model that tests alone have.
WITHOUT = "*/shared_prefix/varlen.py", "*/vllm/nccl_push.py", "*/vllm/ipc_push.py", "*/policies/tiny/*"
TESTS = (
    *(f"tests/{room}" for room in (*ROOMS, "callbacks", "checkpoints", "core", "datamodules", "navsim_score", "tasks")),
    *(f"tests/test_{name}.py" for name in ("against_loops", "bounds", "reference_update", "theorems")),
    *(f"tests/test_{name}.py" for name in ("own_parts", "plain_example", "seeds", "trl")),
    *(f"lightning_cgrpo/{room}" for room in ("core", *ROOMS)),
    "navsim_score",
)
ENOUGH = 30.0


class Mutants:
    """A pytest plugin that runs mutants in the place of tests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.failed = False

    def pytest_collection(self) -> None:
        # The same examples each time, and no search for a smaller example.
        phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        recorded = self._recorded(session.items)
        functions = _functions()
        gc.freeze()  # a collection in a fork would copy the memory
        known = {name for names in json.loads((HERE / "equivalent.json").read_text()).values() for name in names}
        results = {}
        forks = Forks(self.arguments.processes)
        for mutant in self._chosen():
            if mutant.name in known:
                results[mutant] = "equivalent"
                continue
            tests = _tests(mutant, session.items, recorded)
            if not tests:
                results[mutant] = "survived"
                continue
            seconds = sum(recorded[item.nodeid]["seconds"] for item in tests)
            code = code_of(mutant, ROOT)
            changed = functions[mutant.file, mutant.function, mutant.first_line]
            forks.start(mutant, functools.partial(self._run, changed, code, tests, recorded), limit=120 + 20 * seconds)
        _write(results | forks.end(), self.arguments)
        return True

    def _chosen(self) -> list[Mutant]:
        found = [mutant for file in core_files() for mutant, _ in mutants_of(ROOT, file)]
        found.sort(key=lambda mutant: hashlib.sha256(f"{self.arguments.seed} {mutant.name}".encode()).digest())
        chosen = [mutant for mutant in found[: self.arguments.count] if self.arguments.only in mutant.name]
        return sorted(chosen, key=lambda mutant: (mutant.file, mutant.lines.start))

    def _run(self, functions: list[FunctionType], code: Any, tests: list[pytest.Item], recorded: dict[str, Any]) -> int:
        """Run tests with the changed functions until one fails; 0 if none does."""
        for function in functions:
            function.__code__ = code
        self.failed = False
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            # CPU seconds: the signal ends the fork, if a loop has no end.
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * recorded[item.nodeid]["seconds"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0

    # ------------------------------------------------------------------ which test runs which line

    def _recorded(self, items: list[pytest.Item]) -> dict[str, Any]:
        """Seconds and lines of tests by name; the modules that the tests import are imported."""
        core = hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in core_files())).hexdigest()
        if not RECORD.exists() or json.loads(RECORD.open().readline())["core"] != core:
            RECORD.write_text(json.dumps({"core": core}) + "\n")
        known = {json.loads(line).get("test") for line in RECORD.open()}
        missing = [item for item in items if item.nodeid not in known]
        forks = Forks(self.arguments.processes)
        for number in range(self.arguments.processes if missing else 0):
            part = [item for item in missing if len(str(item.path)) % self.arguments.processes == number]
            forks.start(f"record {number}", functools.partial(self._record, part), limit=7200)
        forks.end()
        lines = [json.loads(line) for line in RECORD.open()]
        for name in {name for line in lines for name in line.get("modules", ())}:
            _import(name)
        return {line["test"]: line for line in lines if line.get("lines")}

    def _record(self, items: list[pytest.Item]) -> int:
        files = {str(ROOT / file): file for file in core_files()}
        with RECORD.open("a") as record:
            for item, following in zip(items, [*items[1:], None], strict=True):
                lines: dict[str, set[int]] = {file: set() for file in files.values()}

                def trace(frame: FrameType, event: str, _: Any, lines: Any = lines) -> Any:
                    file = files.get(frame.f_code.co_filename)
                    if file is None:
                        return None
                    lines[file].add(frame.f_lineno)
                    return trace

                self.failed = False
                began = time.process_time()
                sys.settrace(trace)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                sys.settrace(None)
                seen = {} if self.failed else {file: sorted(of) for file, of in lines.items() if of}
                line = {"test": item.nodeid, "seconds": time.process_time() - began, "lines": seen}
                record.write(json.dumps(line) + "\n")
                record.flush()
                if self.failed:
                    print(f"Fails without a change: {item.nodeid}", flush=True)
            record.write(json.dumps({"modules": [name for name in sys.modules if not name.startswith("tests")]}) + "\n")
        return 0


def core_files() -> list[str]:
    found = []
    for pattern in CORE:
        folder, _, name = pattern.rpartition("/")
        found += [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob(name))]
    return [file for file in found if not any(fnmatch.fnmatch(file, without) for without in WITHOUT)]


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the core by file, name and first line, also those that decorators wrap."""
    for file in core_files():
        _import(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    files = {str(ROOT / file): file for file in core_files()}
    found = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in files:
            code = thing.__code__
            found[files[code.co_filename], code.co_qualname, code.co_firstlineno].append(thing)
    return found


def _import(name: str) -> None:
    # Tests make modules up, which are gone then.
    with contextlib.suppress(Exception):
        importlib.import_module(name)


def _tests(mutant: Mutant, items: list[pytest.Item], recorded: dict[str, Any]) -> list[pytest.Item]:
    """Tests that run the changed lines, file by file, because the tests of a file may share what takes long."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        lines = recorded.get(item.nodeid, {"lines": {}})["lines"].get(mutant.file, ())
        if not set(mutant.lines).isdisjoint(lines):
            files[str(item.path)].append(item)
    room = Path(mutant.file).parent.name
    seconds = {file: sum(recorded[item.nodeid]["seconds"] for item in own) for file, own in files.items()}
    chosen: list[pytest.Item] = []
    left = ENOUGH
    for file in sorted(files, key=lambda file: (room not in Path(file).parts, seconds[file])):
        for item in files[file]:
            left -= recorded[item.nodeid]["seconds"]
            if left > 0 or not chosen:
                chosen.append(item)
    return chosen


def _write(results: dict[Mutant, str], arguments: argparse.Namespace) -> None:
    total = Counter(results.values())
    changing = total["killed"] + total["survived"]
    score = f"{total['killed']} of {changing}, {total['killed'] / max(changing, 1):.1%}"
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"Killed: {score}, in {sum(times.ru_utime + times.ru_stime for times in used) / 60:.1f} CPU minutes")
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, result in results.items():
        files[mutant.file][result] += 1
    written = {
        "seed": arguments.seed,
        "killed": score,
        "equivalent": total["equivalent"],
        "survivors": [mutant.text for mutant, result in results.items() if result == "survived"],
        "files": {file: dict(counts) for file, counts in sorted(files.items())},
    }
    if not arguments.only:
        (HERE / "score.json").write_text(json.dumps(written, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="only mutants whose names hold this text; no score is written")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    RECORD.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-n", "0", "-p", "no:cacheprovider", "-p", "no:terminal", f"--basetemp={folder}/tests"]
        sys.exit(pytest.main([*options, *TESTS], plugins=[Mutants(arguments)]))


if __name__ == "__main__":
    main()
