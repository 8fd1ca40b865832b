"""Trainings are those of the committed curves; `python -m tests.golden` tells what differs."""

import pytest

from tests.golden.curves import CURVES, UPDATES, committed, difference, trained

FAST = "gridworld", "scalarized_rewards"
CURVE = "EPYC, AVX512, torch 2.13.0\n0 rate/lava=0.25 reward/mean=1.0\n1 rate/lava=0.125 reward/mean=0.5\n"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CURVES]
)
def test_a_training_is_as_committed(name):
    """A change that is meant to change training writes the curve again, and the diff shows by how much."""
    text = committed(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) == 1 + UPDATES
    assert difference(text, trained(name)) == ""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("", "", ""),
        ("lava=0.125", "lava=0.12500000000000003", "update 1: rate/lava was 0.125, and is 0.12500000000000003"),
        ("rate/lava=0.25 ", "", r"update 0: other tags, ['rate/lava']"),
        ("1 rate/lava=0.125 reward/mean=0.5\n", "", "2 updates before, and 1 now"),
        ("EPYC", "Xeon", ""),
    ],
)
def test_one_digit_is_a_difference(old, new, told):
    assert difference(CURVE, CURVE.replace(old, new)) == told


@pytest.mark.parametrize(("value", "equal"), [("0.1251", True), ("0.13", False), ("nan", False)])
def test_another_machine_may_round_otherwise(value, equal):
    other = CURVE.replace("EPYC", "Xeon").replace("0.125", value)
    assert (difference(CURVE, other) == "") is equal
