"""A run that cannot learn is told, with the update where it began, and resumes as it was."""

import warnings

import pytest

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.modules.standstill import UPDATES, StandstillDetector

OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.1)})
LEARNING = {"informative/reward": 1.0, "sum/goal": 3.0, "count/goal": 8.0, "answers": 8.0}
CONSTANT = {"informative/reward": 0.0}


def feed(detector, updates, stepped=True, **changes):
    for update in updates:
        detector.check(update, {**LEARNING, **changes}, stepped)


def silently(*arguments, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(*arguments, **changes)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (CONSTANT, "The reward 'goal' teaches nothing: since update 6 no two answers"),
        ({"stepped": False}, "The policy learns nothing: since update 6 no gradient is finite"),
    ],
)
@pytest.mark.parametrize("every", [1, 3])
def test_twenty_updates_in_a_row_are_a_standstill(fault, told, every):
    detector = StandstillDetector(OBJECTIVE)
    feed(detector, range(0, 6, every))
    with pytest.warns(UserWarning, match=told):
        feed(detector, range(6, 2 * UPDATES, every), **fault)


def test_a_reward_that_never_varied_is_told_by_the_second_update():
    detector = StandstillDetector(OBJECTIVE)
    feed(detector, range(1), **CONSTANT)
    with pytest.warns(UserWarning, match="The reward 'goal' teaches nothing: since update 0"):
        feed(detector, [1], **CONSTANT)


def test_a_policy_that_succeeds_has_nothing_to_learn():
    silently(StandstillDetector(OBJECTIVE), range(5 * UPDATES), **CONSTANT, **{"sum/goal": 8.0})


def test_nineteen_updates_are_none_and_a_cause_is_told_once():
    detector = StandstillDetector(OBJECTIVE)
    silently(detector, range(1))
    silently(detector, range(1, UPDATES), **CONSTANT)
    silently(detector, range(UPDATES, 2 * UPDATES))
    with pytest.warns(UserWarning, match="since update 40"):
        feed(detector, range(2 * UPDATES, 3 * UPDATES), **CONSTANT)
    feed(detector, range(3 * UPDATES, 4 * UPDATES))
    silently(detector, range(4 * UPDATES, 6 * UPDATES), **CONSTANT)


def test_a_resumed_run_finds_the_same():
    first, second = StandstillDetector(OBJECTIVE), StandstillDetector(OBJECTIVE)
    feed(first, range(3))
    feed(first, range(3, 15), **CONSTANT)
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="since update 3"):
        feed(second, range(15, 30), **CONSTANT)
