"""The simulated error rates that docs/verdicts.md reports: certificates hold, and the tempting methods do not."""

import json
import math

import pytest

from benchmarks.verdicts import RESULTS, false_certificates, false_joint_certificates, false_step_certificates, needed

pytestmark = pytest.mark.slow
REPETITIONS = 10_000
CHANCE = 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)
"""What 10,000 repetitions may show of a share of 5 %."""


@pytest.mark.parametrize("threshold", [0.01, 0.15])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_false_certificates(threshold, correlation):
    found = false_certificates(threshold, correlation, REPETITIONS)
    assert found["one answer, exactly"] <= 0.05
    assert found["one answer"] < CHANCE and found["selected, certified afresh"] < CHANCE
    assert found["selected"] > 0.4, "the luckiest of 20 checkpoints looks feasible on the prompts that selected it"
    if correlation:
        assert found["pooled"] > 0.2, "answers to a prompt are no independent prompts"
    committed = json.loads(RESULTS.read_text())["false certificates"]
    assert committed.count({"threshold": threshold, "correlation": correlation, **found}) == 1


def test_several_constraints_and_steps():
    committed = json.loads(RESULTS.read_text())
    joint = false_joint_certificates(3, REPETITIONS)
    assert joint["Holm"] < CHANCE < joint["each alone"] and joint == committed["three constraints"]
    steps = false_step_certificates(100, REPETITIONS)
    assert steps["betting"] < CHANCE and steps["pooled"] > 0.2 and steps == committed["steps"]["100"]


def test_needed_prompts_are_those_of_the_table():
    assert needed() == json.loads(RESULTS.read_text())["needed"]
