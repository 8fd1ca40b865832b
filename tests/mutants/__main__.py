"""Change the core in one place at a time, and see whether a test fails: ``python -m tests.mutants``.

- The core is `core.CORE`, and its tests are the fast tests of `TESTS`. One process collects them.
- A first fork for each of --processes runs the tests as they are, and records each test's lines and CPU seconds.
- A mutant is a fork that gets the changed code of one function, and runs the tests of its lines until one fails.
  Files come first that killed another mutant of the file, then those of the same room, then the quickest, up to
  `ENOUGH` seconds.
- `KEPT` has what was found: a test is recorded again, and a mutant runs again, only if its code or its tests' files
  have changed. So an interrupted run goes on where it was. --fresh forgets all.
- The mutants of a seed are those whose names have the smallest hashes, so other code can change without changing them.
- `score.json` has the score by file, and the survivors. `equivalent.json` names mutants that change no behavior, by
  reason; they are not run.
"""

import argparse
import functools
import gc
import hashlib
import json
import os
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
from tests.mutants.core import ROOMS, cached_functions, core_files, forget, functions_of_core, import_quietly
from tests.mutants.forks import Forks
from tests.mutants.kept import ROOT, Kept, digest_of

HERE = Path(__file__).parent
KEPT = ROOT / ".pytest_cache" / "mutants.jsonl"
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
        self.kept = Kept(KEPT)
        self.results: dict[Mutant, dict[str, Any]] = {}
        self.failed = ""
        """How a test failed, since this was emptied."""
        self.lines: dict[str, set[int]] = {}
        """Lines of the core that ran, by file, since this was emptied."""
        self.in_setup: dict[str, set[int]] = {}
        """Those that ran before the test itself, as for a fixture that other tests share."""

    def pytest_collection(self) -> None:
        # The same examples each time, and no search for a smaller example.
        phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed += report.longreprtext
        if report.when == "setup":
            self.in_setup, self.lines = self.lines, {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # what tests/conftest.py froze would not be found
        self.caches = cached_functions()
        recorded = self._recorded(session.items)
        functions = functions_of_core()
        gc.freeze()  # a collection in a fork would copy the memory
        known = {name for names in json.loads((HERE / "equivalent.json").read_text()).values() for name in names}
        forks = Forks(self.arguments.processes)
        for mutant in self._chosen():
            if mutant.name in known:
                self._keep(mutant, "", result="equivalent", by=None, seconds=0.0)
                continue
            tests = _tests(mutant, session.items, recorded, self._killers(mutant.file))
            if (fact := self._known_of(mutant, tests)) is not None:
                self.results[mutant] = fact
                continue
            if not tests:
                self._end(mutant, tests, "", 0.0)
                continue
            few, seconds = _enough(tests, recorded)
            code = code_of(mutant, ROOT)
            changed = functions[mutant.file, mutant.function, mutant.first_line]
            free = {function.__code__.co_freevars for function in changed}
            assert free == {code.co_freevars}, mutant.text
            forks.start(
                functools.partial(self._run, changed, code, few, recorded),
                120 + 20 * seconds,
                functools.partial(self._end, mutant, tests),
            )
        forks.end()
        _write(self.results, self.arguments)
        return True

    def _chosen(self) -> list[Mutant]:
        found = [mutant for file in core_files() for mutant, _ in mutants_of(ROOT, file)]
        found.sort(key=lambda mutant: hashlib.sha256(f"{self.arguments.seed} {mutant.name}".encode()).digest())
        return [mutant for mutant in found[: self.arguments.count] if self.arguments.only in mutant.name]

    def _known_of(self, mutant: Mutant, tests: list[pytest.Item]) -> dict[str, Any] | None:
        """What a run has found, if neither the function nor the files have changed of the tests that found it."""
        fact = self.kept.facts.get(mutant.name)
        if fact is None:
            return None
        return self.kept.find(mutant.name, _digest(mutant, tests, fact["by"]))

    def _killers(self, file: str) -> set[str]:
        """Test files that killed a mutant of a file."""
        facts = [fact for name, fact in self.kept.facts.items() if name.startswith(f"{file} ") and fact.get("by")]
        return {str(ROOT / fact["by"].partition("::")[0]) for fact in facts}

    def _end(self, mutant: Mutant, tests: list[pytest.Item], by: str | None, seconds: float) -> None:
        """Keep what was found: the name of the test that failed, "" for none, None for a crash."""
        result = "survived" if by == "" else "killed"
        self._keep(mutant, _digest(mutant, tests, by), result=result, by=by, seconds=seconds)

    def _keep(self, mutant: Mutant, digest: str, **found: Any) -> None:
        self.kept.add(mutant.name, digest, **found)
        self.results[mutant] = fact = self.kept.facts[mutant.name]
        print(f"{len(self.results):4} {fact['result']:10} {fact['seconds']:5.1f} s  {mutant.text}", flush=True)

    def _run(self, functions: list[FunctionType], code: Any, tests: list[pytest.Item], recorded: dict[str, Any]) -> str:
        """Run tests with the changed functions until one fails; its name, or "" if none does."""
        for function in functions:
            function.__code__ = code
        forget(self.caches)
        self.failed = ""
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            # CPU seconds: the signal ends the fork, if a loop has no end.
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * recorded[item.nodeid]["seconds"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return item.nodeid
        return ""

    # ------------------------------------------------------------------ which test runs which line

    def _recorded(self, items: list[pytest.Item]) -> dict[str, Any]:
        """Seconds and lines of tests by name; the modules that the tests import are imported."""
        missing = [item for item in items if self._record_of(item) is None]
        forks = Forks(self.arguments.processes)
        for number in range(self.arguments.processes if missing else 0):
            part = [item for item in missing if len(str(item.path)) % self.arguments.processes == number]
            forks.start(functools.partial(self._record, part), 7200, lambda passed, seconds: None)
        forks.end()
        self.kept.read()
        for name in {name for fact in self.kept.facts.values() for name in fact.get("modules", ())}:
            import_quietly(name)
        return {item.nodeid: fact for item in items if (fact := self._record_of(item)) is not None}

    def _record_of(self, item: pytest.Item) -> dict[str, Any] | None:
        fact = self.kept.facts.get(item.nodeid, {"lines": (), "in_setup": ()})
        return self.kept.find(item.nodeid, digest_of([item.path, *fact["lines"], *fact["in_setup"]]))

    def _record(self, items: list[pytest.Item]) -> str:
        files = {str(ROOT / file): file for file in core_files()}

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            file = files.get(frame.f_code.co_filename)
            if file is None:
                return None
            self.lines.setdefault(file, set()).add(frame.f_lineno)
            return trace

        for item, following in zip(items, [*items[1:], None], strict=True):
            forget(self.caches)
            self.failed, self.lines = "", {}
            began = time.process_time()
            sys.settrace(trace)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            if self.failed:
                print(f"Fails without a change, so it is left out: {item.nodeid}\n{self.failed}", flush=True)
                self.lines, self.in_setup = {}, {}
            lines, in_setup = ({file: sorted(of) for file, of in part.items()} for part in (self.lines, self.in_setup))
            digest = digest_of([item.path, *lines, *in_setup])
            self.kept.add(item.nodeid, digest, seconds=time.process_time() - began, lines=lines, in_setup=in_setup)
        modules = [name for name in sys.modules if not name.startswith("tests")]
        self.kept.add(f"modules of {items[0].nodeid if items else None}", "", modules=modules)
        return ""


def _digest(mutant: Mutant, tests: list[pytest.Item], by: str | None) -> str:
    """Of all that decides what is found: all tests, or the test that fails."""
    deciding = [item for item in tests if not by or item.nodeid == by]
    names = sorted(item.nodeid for item in deciding)
    return digest_of([item.path for item in deciding], mutant.source, *names)


def _tests(mutant: Mutant, items: list[pytest.Item], recorded: dict[str, Any], killers: set[str]) -> list[pytest.Item]:
    """Tests that run the changed lines, file by file, because the tests of a file may share what takes long."""
    recorded_items = [item for item in items if item.nodeid in recorded]
    shared = {item.path for item in recorded_items if _runs(mutant, recorded[item.nodeid]["in_setup"])}
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in recorded_items:
        if item.path in shared or _runs(mutant, recorded[item.nodeid]["lines"]):
            files[str(item.path)].append(item)
    room = Path(mutant.file).parent.name
    seconds = {file: sum(recorded[item.nodeid]["seconds"] for item in own) for file, own in files.items()}
    order = sorted(files, key=lambda file: (file not in killers, room not in Path(file).parts, seconds[file]))
    return [item for file in order for item in files[file]]


def _enough(tests: list[pytest.Item], recorded: dict[str, Any]) -> tuple[list[pytest.Item], float]:
    """The first tests of `ENOUGH` seconds, and at least one, and their seconds."""
    chosen: list[pytest.Item] = []
    total = 0.0
    for item in tests:
        seconds = recorded[item.nodeid]["seconds"]
        if total + seconds < ENOUGH or not chosen:
            chosen.append(item)
            total += seconds
    return chosen, total


def _runs(mutant: Mutant, lines: dict[str, list[int]]) -> bool:
    return not set(mutant.lines).isdisjoint(lines.get(mutant.file, ()))


def _write(results: dict[Mutant, dict[str, Any]], arguments: argparse.Namespace) -> None:
    total = Counter(fact["result"] for fact in results.values())
    changing = total["killed"] + total["survived"]
    score = f"{total['killed']} of {changing}, {total['killed'] / max(changing, 1):.1%}"
    minutes = round(sum(fact["seconds"] for fact in results.values()) / 60, 1)
    print(f"Killed: {score}, in {minutes} CPU minutes")
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, fact in sorted(results.items(), key=lambda pair: pair[0].file):
        files[mutant.file][fact["result"]] += 1
    written = {
        "seed": arguments.seed,
        "killed": score,
        "equivalent": total["equivalent"],
        "cpu_minutes": minutes,
        "survivors": [mutant.text for mutant, fact in results.items() if fact["result"] == "survived"],
        "files": {file: dict(counts) for file, counts in files.items()},
    }
    if not arguments.only:
        (HERE / "score.json").write_text(json.dumps(written, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="only mutants whose names hold this text; no score is written")
    parser.add_argument("--fresh", action="store_true", help="begin again")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    if arguments.fresh:
        KEPT.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-p no:{plugin}" for plugin in ("cacheprovider", "terminal", "faulthandler")]
        options += ["-n", "0", f"--basetemp={folder}/tests"]
        sys.exit(pytest.main([*options, *TESTS], plugins=[Mutants(arguments)]))


if __name__ == "__main__":
    main()
