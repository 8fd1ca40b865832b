"""A run over mutants: what is known is not run again, and a test that fails without a change kills nothing."""

from contextlib import nullcontext

import pytest

from tests.mutants.__main__ import Run, score
from tests.mutants.changes import mutants_of
from tests.mutants.kept import Kept, digest_of
from tests.mutants.trial import Outcome
from tests.of import ROOT

FILE = "lightning_cgrpo/grpo/gae.py"
TEST = "tests/grpo/test_advantages.py"


class Trials:
    """The repository itself, in which `wrong` fails always, and a test of `kills` on each changed file."""

    copy = ROOT

    def __init__(self, kills, wrong=()):
        self.kills, self.wrong, self.runs = kills, wrong, 0

    def changed(self, file, source):
        assert source != (ROOT / file).read_bytes()
        return nullcontext()

    def run(self, tests, without=(), to_the_end=False):
        if to_the_end:
            return Outcome("survived", [test for test in tests if test in self.wrong], list(tests))
        self.runs += 1
        failed = [test for test in (*self.wrong, *self.kills) if test not in without][:1]
        return Outcome("assertion" if failed else "survived", failed, [TEST], 1.0)


@pytest.fixture
def made(tmp_path):
    mutants = mutants_of(ROOT, FILE)[:3]

    def run(trials, *first):
        made = Run(trials, Kept(tmp_path / "kept" / "facts.jsonl"), mutants, [*first])
        made.all()
        return [fact["result"] for fact in made.found.values()], score("0", made.found)

    return run


def test_what_is_known_is_not_run_again(made):
    trials = Trials([f"{TEST}::test_one"])
    for _ in range(2):
        results, written = made(trials)
        assert results == ["assertion"] * 3 and trials.runs == 3
        assert written["rooms"] == {"grpo": {"killed": "3 of 3, 100.0%", "assertion": 3}}


def test_survivors_meet_the_tests_that_are_to_run_first(made):
    trials = Trials([])
    for first, runs in (((), 3), ((TEST,), 3), (("tests/test_bounds.py",), 6)):
        made(trials, *first)
        assert trials.runs == runs


def test_a_test_that_fails_without_a_change_kills_nothing(made):
    trials = Trials([], wrong=[f"{TEST}::test_broken"])
    results, written = made(trials)
    assert results == ["survived"] * 3 and trials.runs == 6
    assert written["killed"] == "0 of 3, 0.0%" and len(written["survivors"]) == 3


def test_time_outs_alone_are_no_kills():
    mutants = mutants_of(ROOT, FILE)[:4]
    results = ("crash", "time-out", "equivalent", "exception")
    facts = {mutant: {"result": result, "seconds": 30.0} for mutant, result in zip(mutants, results, strict=True)}
    written = score("0", facts)
    assert (written["killed"], written["cpu_minutes"], len(written["late"])) == ("2 of 3, 66.7%", 2.0, 1)


def test_a_test_file_that_is_gone_decides_nothing(tmp_path):
    file = tmp_path / "test_moved.py"
    file.write_text("")
    before = digest_of([file])
    file.unlink()
    assert digest_of([file]) != before
