"""Change the packages in one place at a time, and see whether a test fails: ``python -m tests.mutants``.

- All rooms of the packages are changed (`core.core_files`): expressions, guards, masks, returns, constants, defaults.
  Their tests are the fast tests and the examples of docstrings. One process collects them.
- The first mutant is a control: code that is compiled again without a change. No test may fail.
- A first fork for each of --processes runs the tests as they are, and records each test's lines and CPU seconds.
- A mutant is a fork that gets the changed code of one function, and runs the tests of its lines until one fails.
  Files come first that killed another mutant of the file, then those of the same room, then the quickest, up to
  `ENOUGH` seconds.
- `KEPT` has what was found: a test is recorded again, and a mutant runs again, only if its code or its tests' files
  have changed. So an interrupted run goes on where it was. --fresh forgets all.
- The mutants of a seed are those whose names have the smallest hashes, so other code can change without changing them.
  The seed is the commit's by default.
- A mutant is killed by an assertion, by an exception, or by a crash of its process. A time-out alone is no kill.
- With --tests, the mutants are of lines that these files of tests run: a small sample in a minute.
- With --near N, the tests of a mutant are those of at most N files: the tests named like its file, then the smallest
  that name its module. Recording all tests takes half an hour, and recording near tests takes minutes.
- `score.json` has the score by room, and the survivors. `equivalent.json` names mutants that change no behavior, by
  reason; they are not run.
"""

import argparse
import functools
import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

from tests.mutants.changes import Mutant, code_of, mutants_of, value_of
from tests.mutants.core import (
    PACKAGES,
    cached_functions,
    core_files,
    forget,
    functions_of_core,
    import_quietly,
    room_of,
    set_constant,
    set_default,
)
from tests.mutants.forks import Forks
from tests.mutants.kept import ROOT, Kept, digest_of

HERE = Path(__file__).parent
KEPT = ROOT / ".pytest_cache" / "mutants.jsonl"
TESTS = ("tests", *PACKAGES)
ENOUGH = 30.0
CONTROL = 5.0
"""CPU seconds of tests for each mutant, and for the control."""
LONGEST = 3600.0
"""Seconds of the clock until a fork is killed, whose tests have limits of CPU seconds: a machine may be loaded."""
Functions = dict[tuple[str, str, int], list[FunctionType]]
KILLED = "assertion", "exception", "crash"
"""How tests notice a mutant; a time-out alone is no kill."""


class TimedOutError(Exception):
    """A test takes five times as long as without a change, and five seconds."""


def _time_out(*_: Any) -> None:
    raise TimedOutError


class Mutants:
    """A pytest plugin that runs mutants in the place of tests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.kept = Kept(KEPT)
        self.began = time.monotonic()
        self.results: dict[Mutant, dict[str, Any]] = {}
        self.failed = ""
        """How a test failed, since this was emptied."""
        self.kind = ""
        """Whether by an assertion, another exception, or a time-out."""
        self.lines: dict[str, set[int]] = {}
        """Lines of the core that ran, by file, since this was emptied."""
        self.in_setup: dict[str, set[int]] = {}
        """Those that ran before the test itself, as for a fixture that other tests share."""

    def pytest_collection(self) -> None:
        # The same examples each time, and no search for a smaller example.
        phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
        hypothesis.settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.arguments.near:
            paths = {path for mutant in self._chosen() for path in _near(mutant.file, items, self.arguments.near)}
            items[:] = [item for item in items if str(item.path) in paths]

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        error = None if call.excinfo is None else call.excinfo.value
        if error is not None and not isinstance(error, pytest.skip.Exception) and not self.kind:
            asserted = isinstance(error, AssertionError | pytest.fail.Exception)
            late = isinstance(error, TimedOutError)
            self.kind = "time-out" if late else "assertion" if asserted else "exception"

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
        chosen = self._chosen()
        self._control(next((mutant for mutant in chosen if mutant.kind == "code"), None), session, functions, recorded)
        for mutant in chosen:
            if mutant.name in known and self.arguments.tests:
                continue
            if mutant.name in known:
                self._keep(mutant, "", result="equivalent", by=None, seconds=0.0)
                continue
            tests = _tests(mutant, session.items, recorded, self._killers(mutant.file))
            if (fact := self._known_of(mutant, tests)) is not None:
                self.results[mutant] = fact
                continue
            if not tests and self.arguments.tests:
                continue
            if len(self.results) >= self.arguments.count:
                break
            if not tests:
                self._end(mutant, tests, "", 0.0)
                continue
            few = _enough(tests, recorded, ENOUGH)
            apply = _change(mutant, functions)
            forks.start(
                functools.partial(self._run, apply, few, recorded),
                LONGEST,
                functools.partial(self._end, mutant, tests),
            )
            if self.arguments.until and time.monotonic() > self.began + self.arguments.until:
                break
        forks.end()
        _write(self.results, self.arguments)
        return True

    def _control(
        self, mutant: Mutant | None, session: pytest.Session, functions: Functions, recorded: dict[str, Any]
    ) -> None:
        """Run the tests of a mutant with its function compiled anew, without the change: none may fail."""
        if mutant is None:
            return
        few = _enough(_tests(mutant, session.items, recorded, set()), recorded, CONTROL)
        same = next(
            function.__code__.replace() for function in functions[mutant.file, mutant.function, mutant.first_line]
        )
        ended: list[str | None] = []
        forks = Forks(1)
        apply = functools.partial(_put_code, functions[mutant.file, mutant.function, mutant.first_line], same)
        forks.start(functools.partial(self._run, apply, few, recorded), LONGEST, lambda by, seconds: ended.append(by))
        forks.end()
        if ended != [""]:
            raise SystemExit(f"The control, {mutant.function} of {mutant.file} without a change, fails: {ended[0]}")
        print(f"   0 control    passes {len(few)} tests  {mutant.file} {mutant.function}", flush=True)

    @functools.cache  # noqa: B019 (one object)
    def _chosen(self) -> list[Mutant]:
        found = [mutant for file in core_files() for mutant, _ in mutants_of(ROOT, file)]
        found.sort(key=lambda mutant: hashlib.sha256(f"{self.arguments.seed} {mutant.name}".encode()).digest())
        count = None if self.arguments.tests else self.arguments.count
        return [mutant for mutant in found[:count] if self.arguments.only in mutant.name]

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
        """Keep what was found: how and which test failed, "" for none, None for a crash."""
        kind, _, test = ("crash", "", "") if by is None else by.partition(" ")
        test = test if kind in KILLED else ""
        self._keep(mutant, _digest(mutant, tests, test), result=kind or "survived", by=test, seconds=seconds)

    def _keep(self, mutant: Mutant, digest: str, **found: Any) -> None:
        self.kept.add(mutant.name, digest, **found)
        self.results[mutant] = fact = self.kept.facts[mutant.name]
        print(f"{len(self.results):4} {fact['result']:10} {fact['seconds']:5.1f} s  {mutant.text}", flush=True)

    def _run(self, apply: Callable[[], None], tests: list[pytest.Item], recorded: dict[str, Any]) -> str:
        """Run tests with a change until one fails; how, and its name, or "" if none does.

        After a time-out, the other tests run, because a time-out alone is no kill.
        """
        apply()
        forget(self.caches)
        signal.signal(signal.SIGPROF, _time_out)
        late = ""
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            self.failed = self.kind = ""
            # CPU seconds: the signal ends the test, if a loop has no end.
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * recorded[item.nodeid]["seconds"])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed and self.kind == "time-out":
                late = f"time-out {item.nodeid}"
            elif self.failed:
                return f"{self.kind or 'exception'} {item.nodeid}"
        return late

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


def _change(mutant: Mutant, functions: Functions) -> Callable[[], None]:
    """What makes the change in a fork."""
    if mutant.kind == "constant":
        return functools.partial(set_constant, mutant.file, *value_of(mutant))
    own = functions[mutant.file, mutant.function, mutant.first_line]
    if mutant.kind == "default":
        return functools.partial(_set_defaults, own, *value_of(mutant))
    code = code_of(mutant, ROOT)
    free = {function.__code__.co_freevars for function in own}
    assert free == {code.co_freevars} or not own, mutant.text
    return functools.partial(_put_code, own, code)


def _put_code(functions: list[FunctionType], code: CodeType) -> None:
    for function in functions:
        function.__code__ = code


def _set_defaults(functions: list[FunctionType], name: str, value: Any) -> None:
    for function in functions:
        set_default(function, name, value)


def _near(file: str, items: list[pytest.Item], most: int) -> list[str]:
    """The paths of at most so many files of tests: those named like a file, then the smallest that name its module."""
    stem, module = Path(file).stem, file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    paths = {item.path for item in items}
    named = [path for path in paths if path.name == f"test_{stem}.py" or path == ROOT / file]
    sizes = {path: len(_text_of(path)) for path in paths if path not in named and module in _text_of(path)}
    room = [path for path in paths if not named and not sizes and room_of(file) in path.parts]
    return [str(path) for path in [*sorted(named), *sorted(sizes, key=lambda path: sizes[path]), *sorted(room)][:most]]


@functools.cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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


def _enough(tests: list[pytest.Item], recorded: dict[str, Any], enough: float) -> list[pytest.Item]:
    """The first tests of so many seconds, and at least one."""
    chosen: list[pytest.Item] = []
    total = 0.0
    for item in tests:
        seconds = recorded[item.nodeid]["seconds"]
        if total + seconds < enough or not chosen:
            chosen.append(item)
            total += seconds
    return chosen


def _runs(mutant: Mutant, lines: dict[str, list[int]]) -> bool:
    if mutant.kind == "constant":  # any line of the file may read it
        return mutant.file in lines
    if mutant.kind == "default":
        return not set(range(mutant.lines.start, mutant.lines.start + 40)).isdisjoint(lines.get(mutant.file, ()))
    return not set(mutant.lines).isdisjoint(lines.get(mutant.file, ()))


def _write(results: dict[Mutant, dict[str, Any]], arguments: argparse.Namespace) -> None:
    total = Counter(fact["result"] for fact in results.values())
    killed = sum(total[kind] for kind in KILLED)
    changing = killed + total["survived"] + total["time-out"]
    score = f"{killed} of {changing}, {killed / max(changing, 1):.1%}"
    minutes = round(sum(fact["seconds"] for fact in results.values()) / 60, 1)
    print(f"Killed: {score}, in {minutes} CPU minutes")
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, fact in sorted(results.items(), key=lambda pair: pair[0].file):
        rooms[room_of(mutant.file)][fact["result"]] += 1
    written = {
        "seed": arguments.seed,
        "tests": arguments.tests or (f"of {arguments.near} files near each mutant" if arguments.near else "all fast"),
        "mutants": len(results),
        "killed": score,
        "by": {kind: total[kind] for kind in KILLED},
        "timed out": total["time-out"],
        "equivalent": total["equivalent"],
        "cpu_minutes": minutes,
        "survivors": [mutant.text for mutant, fact in results.items() if fact["result"] == "survived"],
        "late": [mutant.text for mutant, fact in results.items() if fact["result"] == "time-out"],
        "rooms": {room: dict(counts) for room, counts in rooms.items()},
    }
    if not arguments.only:
        (HERE / "score.json").write_text(json.dumps(written, indent=1) + "\n")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", default=_commit(), help="by default the commit")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--near", type=int, default=0, help="files of tests for each mutant; 0 for all")
    parser.add_argument("--tests", nargs="*", default=[], help="files of tests; the mutants are then of lines they run")
    parser.add_argument("--until", type=float, default=0, help="seconds after which no mutant begins; 0 for all")
    parser.add_argument("--only", default="", help="only mutants whose names hold this text; no score is written")
    parser.add_argument("--fresh", action="store_true", help="begin again")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    if arguments.fresh:
        KEPT.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-p no:{plugin}" for plugin in ("cacheprovider", "terminal", "faulthandler")]
        options += ["-n", "0", f"--basetemp={folder}/tests"]
        sys.exit(pytest.main([*options, *(arguments.tests or TESTS)], plugins=[Mutants(arguments)]))


if __name__ == "__main__":
    main()
