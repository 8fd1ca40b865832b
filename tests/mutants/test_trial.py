"""Tests of a changed copy of a repository, in a fork."""

import pytest

from tests.mutants import trial
from tests.mutants.trial import Trials

pytestmark = pytest.mark.slow

PART = "def double(value):\n    return 2 * value\n"
TESTS = """
import part


def test_of_two():
    assert part.double(1) == 2


def test_of_three():
    assert part.double(1) < 3
"""


@pytest.fixture
def trials(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "TOO_LONG", 0.2)
    root = tmp_path / "original"
    root.mkdir()
    (root / "part.py").write_text(PART)
    (root / "test_part.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "folder").mkdir()
    return Trials(root, tmp_path / "folder")


@pytest.mark.parametrize(
    ("change", "result", "failed"),
    [
        ("return value + value", "survived", []),
        ("return 3 * value", "assertion", ["test_of_two"]),
        ("return 2 / (value - 1)", "exception", ["test_of_two"]),
        ("import os; os._exit(3)", "crash", []),
        ("while value: pass", "time-out", ["test_of_two", "test_of_three"]),  # the next test runs
        ("1 +", "exception", [""]),  # of the import
    ],
)
def test_a_change_is_noticed_in_its_way(trials, change, result, failed):
    with trials.changed("part.py", PART.replace("return 2 * value", change).encode()):
        outcome = trials.run(["test_part.py"])
    assert outcome.result == result
    assert [name.partition("::")[2] for name in outcome.failed] == failed
    assert (trials.copy / "part.py").read_text() == PART


def test_all_tests_of_the_control_run(trials):
    with trials.changed("part.py", PART.replace("2", "4").encode()):
        assert trials.run(["test_part.py"], to_the_end=True).failed == [
            "test_part.py::test_of_two",
            "test_part.py::test_of_three",
        ]
        without = trials.run(["test_part.py"], without=["test_part.py::test_of_two"])
    assert (without.result, without.failed) == ("assertion", ["test_part.py::test_of_three"])


def test_changes_of_one_size_are_told_apart(trials):
    for number in (3, 4, 2):
        with trials.changed("part.py", PART.replace("2", str(number)).encode()):
            outcome = trials.run(["test_part.py"])
        assert outcome.result == ("survived" if number == 2 else "assertion")


def test_no_test_begins_when_the_time_is_over(trials, monkeypatch):
    monkeypatch.setattr(trial, "SHARE", -1.0)
    with trials.changed("part.py", PART.replace("2 * value", "2.5 + 1 / (value * 0)").encode()):
        assert len(trials.run(["test_part.py"]).failed) == 1  # at least one runs
