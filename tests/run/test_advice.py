"""The lines about a lost reward and about held constraints."""

import copy
import math
from typing import Any

import pytest

from lightning_cgrpo.run import advice as lines
from lightning_cgrpo.run.record import RunRecord

Record = dict[str, Any]


def advice(record: Record) -> list[str]:
    """The lines of a record as a file holds it."""
    return lines.advice(RunRecord.read(record))


def measured(reward: float, long: float, error: float | None = 0.02) -> Record:
    return {"reward": {"value": reward, "error": error}, "constraints": {"long": {"value": long}}}


RECORD: Record = {
    "held": {},
    "asked": 300,
    "constraints": {
        "long": {"kind": "rate", "direction": "at_most", "threshold": 0.05, "role": "constrain"},
        "format": {"kind": "rate", "direction": "at_least", "threshold": 0.99, "role": "constrain"},
    },
    "measured": {
        "before": measured(0.70, 0.853, 0.04),
        "end": measured(0.06, 0.03, None) | {"weights": {"reward": 0.1, "long": 0.8, "format": 0.1}},
        "last": measured(0.05, 0.02),
    },
    "validations": [measured(0.69, 0.4), measured(0.68, 0.312), measured(0.30, 0.1), measured(0.05, 0.02)],
}


@pytest.fixture
def record() -> Record:
    """A copy to change."""
    return copy.deepcopy(RECORD)


def test_a_lost_reward_names_the_constraint_and_what_to_do() -> None:
    assert advice(RECORD) == [
        "The reward fell from 0.7 to 0.05. long <= 0.05 pulled furthest, with a weight of 0.80 beside the reward's "
        "0.10. Try at_most: 0.32, which was reached without this loss, a schedule (start: 0.86, over: 200), or more "
        "updates."
    ]


@pytest.mark.parametrize(("end", "told"), [(0.70, False), (0.62, False), (0.60, True), (0.9, False)])
def test_only_beyond_two_standard_errors_of_the_difference(record: Record, end: float, told: bool) -> None:
    """sqrt(0.04^2 + 0.02^2) = 0.0447."""
    record["measured"]["last"] = measured(end, 0.02)
    assert bool(advice(record)) == told


def test_without_a_validation_the_end_of_training_counts(record: Record) -> None:
    del record["measured"]["last"], record["validations"]
    (line,) = advice(record)
    assert "from 0.7 to 0.06" in line and "Try a schedule (start: 0.86, over: 200), or more updates." in line


def test_no_policy_kept_the_reward(record: Record) -> None:
    record["validations"] = record["validations"][2:]
    assert "which was reached" not in advice(record)[0]


def test_a_lower_bound_is_loosened_downward(record: Record) -> None:
    record["measured"]["end"]["weights"] = {"reward": 0.1, "long": 0.1, "format": 0.8}
    rates = [0.8, 0.91, 0.9137, 1, 1]
    for measurement, rate in zip([record["measured"]["before"], *record["validations"]], rates, strict=True):
        measurement["constraints"]["format"] = {"value": rate}
    # In units of the bounds, format moved from 0.8 to 1, two units, and long as far as before, 3.8.
    assert "format >= 0.99 pulled furthest" in advice(record)[0]
    assert "Try at_least: 0.913, which was reached" in advice(record)[0]
    assert "start: 0.8, over" in advice(record)[0]


def test_a_heavy_constraint_that_was_met_from_the_start_is_not_named(record: Record) -> None:
    record["measured"]["end"]["weights"] = {"reward": 0.2, "long": 0.3, "format": 0.5}
    for measurement in (record["measured"]["before"], record["measured"]["last"]):
        measurement["constraints"]["format"] = {"value": 0.995}
    assert "long <= 0.05 pulled furthest, with a weight of 0.30" in advice(record)[0]


def test_a_constraint_whose_rate_moved_away_is_not_named(record: Record) -> None:
    """Format got worse for the sake of the other."""
    record["measured"]["end"]["weights"] = {"reward": 0.1, "long": 0.3, "format": 0.6}
    for measurement, rate in ((record["measured"]["before"], 0.9), (record["measured"]["last"], 0.2)):
        measurement["constraints"]["format"] = {"value": rate}
    assert "long <= 0.05 pulled furthest" in advice(record)[0]


def test_a_schedule_from_a_rate_that_meets_the_bound_is_not_proposed(record: Record) -> None:
    record["measured"]["end"]["weights"] = {"reward": 0.1, "long": 0.9}
    record["measured"]["before"]["constraints"]["long"] = {"value": 0.04}
    assert advice(record)[0].endswith("Try at_most: 0.32, which was reached without this loss, or more updates.")
    record["validations"] = []
    assert advice(record)[0].endswith("Try more updates.")


@pytest.mark.parametrize("reward", [math.nan, None])
def test_a_reward_that_is_no_number_tells_nothing(record: Record, reward: float | None) -> None:
    del record["measured"]["end"]
    record["measured"]["last"] = measured(0.0, 0.02) | {"reward": {"value": reward, "error": 0.02}}
    assert advice(record) == []


def test_a_held_constraint_is_told(record: Record) -> None:
    record["measured"]["last"] = measured(0.7, 0.3)
    record["held"] = {"long": 0.304}
    assert advice(record) == [
        "long <= 0.05 was not met and did not get better, so training holds what was reached: try at_most: 0.31."
    ]


@pytest.mark.parametrize("record", [{}, {"measured": {}}, {"measured": {"before": measured(1.0, 0.5)}, "held": {}}])
def test_summaries_of_little_tell_nothing(record: Record) -> None:
    """Runs of earlier versions, runs without a measurement at the start, and runs that have just begun."""
    assert advice(record) == []


def test_fixed_weights_enforce_no_threshold() -> None:
    assert advice(RECORD | {"held": None}) == []
