"""Change the packages in one place at a time, and see whether a test fails: ``python -m tests.mutants``.

- All rooms of the packages are changed (`files`), by the changes of `changes.py`.
- A mutant's tests are the examples in its file's docstrings and the fast tests that `tests.of` names, nearest first.
  They run in a fork, on a copy of the repository (`trial.py`), until one fails. Test files come first that killed
  another mutant of the file. A mutant that no test kills within `trial.ENOUGH` CPU seconds has survived.
- A mutant is killed by an assertion, an exception or a crash of the process. A time-out alone is no kill.
- The control: each test that killed a mutant passes on the unchanged copy. A test that fails there is left out, and
  its mutants run again.
- `KEPT` has what was found: a mutant runs again only if its file or its tests have changed, so an interrupted run goes
  on where it was. --fresh forgets all.
- The mutants of a seed are those whose names have the smallest hashes, so other code can change without changing them.
  The seed is the commit's by default.
- `score.json` has the score by room, and the survivors. `equivalent.json` names mutants that change no behavior, by
  reason; they are not run.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.kept import Kept, digest_of
from tests.mutants.trial import Trials, import_libraries
from tests.of import PACKAGES, ROOT, tests_of, waves_of_tests

HERE = Path(__file__).parent
KEPT = ROOT / ".pytest_cache" / "mutants.jsonl"
WITHOUT = (
    *("*/shared_prefix/varlen.py", "*/vllm/nccl_push.py", "*/vllm/ipc_push.py"),  # need a GPU
    "lightning_cgrpo/verl.py",  # needs verl, which excludes this package's transformers
    *("*/report/figures/*", "*/policies/tiny/*"),  # looks of figures; models of tests
    *("*/importable/*", "*/configs/*"),  # links to examples and configurations
)
KILLED = "assertion", "exception", "crash"


class Run:
    """Mutants of a seed, and what was found of them."""

    def __init__(self, trials: Trials, kept: Kept, mutants: list[Mutant], first: list[str]) -> None:
        self.trials = trials
        self.kept = kept
        self.mutants = mutants
        self.first = first
        self.equivalent = {
            name for names in json.loads((HERE / "equivalent.json").read_text()).values() for name in names
        }
        self.tests = {mutant.file: _tests(mutant.file) for mutant in mutants}
        self.found: dict[Mutant, dict[str, Any]] = {}

    def all(self) -> None:
        """Every mutant, until each test that killed one has passed without a change."""
        wrong = {"before the first round"}
        while wrong:
            for number, mutant in enumerate(self.mutants, 1):
                fact = self._known(mutant) or self._try(mutant)
                print(f"{number:4} {fact['result']:10} {fact['seconds']:5.1f} s  {_text(mutant)}", flush=True)
                self.found[mutant] = fact
            wrong = self._control()

    def _known(self, mutant: Mutant) -> dict[str, Any] | None:
        """What an earlier run has found, if the file and the tests are the same that found it."""
        if mutant.name in self.equivalent:
            return {"result": "equivalent", "by": "", "seconds": 0.0}
        fact = self.kept.facts.get(mutant.name)
        if fact is None or self._is_wrong(fact["by"]) or not (fact["by"] or {*self.first} <= {*fact["ran"]}):
            return None
        return self.kept.find(mutant.name, self._digest(mutant, fact["by"], fact["ran"]))

    def _try(self, mutant: Mutant) -> dict[str, Any]:
        facts = [fact for name, fact in self.kept.facts.items() if name.startswith(f"{mutant.file} ")]
        killers = Counter(_file(fact["by"]) for fact in facts)
        tests = sorted(self.tests[mutant.file], key=lambda test: -killers[test])
        wrong = [name for name in self.kept.facts if self._is_wrong(name)]
        with self.trials.changed(mutant.file, mutant.source(self.trials.copy)):
            outcome = self.trials.run([*self.first, *tests], without=wrong)
        by = outcome.failed[-1] if outcome.result in KILLED and outcome.failed else ""
        digest = self._digest(mutant, by, outcome.ran)
        return self.kept.add(
            mutant.name, digest, result=outcome.result, by=by, ran=outcome.ran, seconds=outcome.seconds
        )

    def _digest(self, mutant: Mutant, by: str, ran: list[str]) -> str:
        """Of all that decides: the file, and the test that failed, or else those that ran and the nearest."""
        nearest = {str(test) for test in tests_of(Path(mutant.file))}
        deciding = [_file(by)] if by else sorted({_file(test) for test in ran} | nearest)
        return self._content(mutant.file, *deciding)

    def _content(self, *files: str) -> str:
        return digest_of(self.trials.copy / file for file in files)

    def _control(self) -> set[str]:
        """The tests that fail without a change, of those that killed a mutant and are not known to pass."""
        killers = {fact["by"] for fact in self.found.values() if fact["by"]}
        unknown = sorted(name for name in killers if not self.kept.find(name, self._content(_file(name))))
        if not unknown:
            return set()
        outcome = self.trials.run(unknown, to_the_end=True)
        for name in unknown:
            result = "fails without a change" if name in outcome.failed else "passes without a change"
            self.kept.add(name, self._content(_file(name)), result=result, by="")
        print(f"The control: {len(unknown)} tests, of which fail: {', '.join(outcome.failed) or 'none'}", flush=True)
        return set(outcome.failed)

    def _is_wrong(self, test: str) -> bool:
        return self.kept.facts.get(test, {}).get("result") == "fails without a change"


def files() -> list[str]:
    """All files of the packages, in all rooms; callbacks and data modules by their links."""
    found = []
    for package in PACKAGES:
        for folder, _, names in os.walk(ROOT / package, followlinks=True):
            found += [str(Path(folder, name).relative_to(ROOT)) for name in names if name.endswith(".py")]
    return [file for file in sorted(found) if not any(fnmatch.fnmatch(file, without) for without in WITHOUT)]


def room_of(file: str) -> str:
    """``grpo`` of lightning_cgrpo/grpo/losses.py, and a package's name of its other files."""
    package, *rooms, _ = file.split("/")
    return rooms[0] if package == "lightning_cgrpo" and rooms else package


def chosen(seed: str, count: int, only: str = "") -> list[Mutant]:
    found = [mutant for file in files() for mutant in mutants_of(ROOT, file) if only in mutant.name]
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
    return found[:count]


def _tests(file: str) -> list[str]:
    """The file itself for the examples of its docstrings, and its test files, of each wave those of its room first."""
    found = [file] if ">>> " in (ROOT / file).read_text(encoding="utf-8") else []
    for wave in waves_of_tests(Path(file)):
        found += [str(test) for test in sorted(wave, key=lambda test: room_of(file) not in test.parts)]
    return found


def _file(test: str) -> str:
    return test.partition("::")[0]


def _text(mutant: Mutant) -> str:
    return f"{mutant.name}  (line {mutant.line})"


def score(seed: str, found: dict[Mutant, dict[str, Any]]) -> dict[str, Any]:
    """What is committed of a run."""
    total = Counter(fact["result"] for fact in found.values())
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, fact in sorted(found.items(), key=lambda pair: pair[0].file):
        rooms[room_of(mutant.file)][fact["result"]] += 1
    return {
        "seed": seed,
        "killed": _share(total),
        "results": dict(total),
        "cpu_minutes": round(sum(fact["seconds"] for fact in found.values()) / 60, 1),
        "rooms": {room: {"killed": _share(counts), **counts} for room, counts in rooms.items()},
        "survivors": [_text(mutant) for mutant, fact in found.items() if fact["result"] == "survived"],
        "late": [_text(mutant) for mutant, fact in found.items() if fact["result"] == "time-out"],
    }


def _share(counts: Counter[str]) -> str:
    killed = sum(counts[result] for result in KILLED)
    changing = counts.total() - counts["equivalent"]
    return f"{killed} of {changing}, {killed / max(changing, 1):.1%}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", default=_commit(), help="by default the commit")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", help="only mutants whose names hold this text; no score is written")
    parser.add_argument("--first", nargs="*", default=[], help="tests to run first, as those written for a survivor")
    parser.add_argument("--fresh", action="store_true", help="begin again")
    arguments = parser.parse_args()
    if arguments.fresh:
        KEPT.unlink(missing_ok=True)
    print(f"To go on after an interrupt: python -m tests.mutants --seed {arguments.seed} --count {arguments.count}")
    mutants = chosen(arguments.seed, arguments.count, arguments.only)
    import_libraries()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Trials(ROOT, Path(folder)), Kept(KEPT), mutants, arguments.first)
        run.all()
    written = score(arguments.seed, run.found)
    print(f"Killed: {written['killed']}, in {written['cpu_minutes']} CPU minutes")
    if not arguments.only:
        (HERE / "score.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
