"""Guards of the dual: stalls and caps, as a run meets them."""

import math
import random
import warnings
from dataclasses import replace

import pytest

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.multipliers import DampedAscent, SoftmaxAdam, StallDetector
from lightning_cgrpo.multipliers.targets import EASIER, MEMORY
from lightning_cgrpo.objective.objective import Constraint, Objective
from tests.dual_run import OBJECTIVE, DualRun, Frozen, run, saved


def test_a_stalled_constraint_is_named_once() -> None:
    running = run(Frozen(0.01, 0.04, 0.95), stall=StallDetector(updates=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            running.update([0, 9], [10, 10])
    with pytest.warns(UserWarning, match=r"Constraint 'safe' has had at least 90% of the weight") as caught:
        for _ in range(20):
            running.update([0, 9], [10, 10])
    assert len(caught) == 1
    message = str(caught[0].message)
    # 9 of 10 are unsafe, so the rate of the wanted behavior is .1.
    assert "may be infeasible. The last 2 updates reached a rate of 0.1, so try at_least: 0.1." in message


def test_another_objective_has_its_own_thresholds() -> None:
    callback = LagrangianCallback()
    for bound in (0.5, 0.01):
        DualRun(callback, Objective("goal", {"lava": Constraint(at_most=bound)})).start()
        assert callback.targets.in_force.tolist() == [bound]


def test_a_stalled_constraint_is_held_at_what_it_reached() -> None:
    running = run(DampedAscent(margin=0.0), stall=StallDetector(updates=50))
    dual = running.callback
    words = r"'lava' has had .* try at_most: 0.9. .*training holds what was reached"
    with pytest.warns(UserWarning, match=words) as told:
        for _ in range(60):
            running.update([9, 0], [10, 10])
    assert len(told) == 1
    target = 0.9 + EASIER * 0.3  # standard units of a threshold of 0.1
    assert dual.targets.targets.tolist() == pytest.approx([target, 0.3])
    assert dual.held == pytest.approx({"lava": target})
    assert running.module.held == dual.held
    for _ in range(60):
        weights = running.update([9, 0], [10, 10])
    assert weights[0] > 0.5, "the reward has most of the weight again"
    # A resumed run holds it too.
    resumed = LagrangianCallback(DampedAscent(margin=0.0), stall=StallDetector(updates=50))
    DualRun(resumed, done=120).start(saved(dual))
    assert resumed.held == dual.held
    # The mean rate of about fifty updates decides that the threshold itself is met.
    updates = 0
    while dual.held:
        running.update([0, 0], [10, 10])
        updates += 1
    assert 0.9 * MEMORY**updates <= 0.1 < 0.9 * MEMORY ** (updates - 1)
    assert dual.targets.targets.tolist() == pytest.approx([0.1, 0.3])


def test_a_held_rate_that_slips_gets_more_weight_than_the_reward() -> None:
    """Its violation is in its own unit: in that of a threshold of 0.001, its noise would be far from what is held."""
    objective = Objective("goal", {"wrong": Constraint(at_most=0.001)})
    running = DualRun(LagrangianCallback(DampedAscent(margin=0.0), StallDetector(updates=50)), objective).start()
    with pytest.warns(UserWarning, match="training holds what was reached"):
        for _ in range(60):
            running.update([17], [100])
    held = running.callback.held["wrong"]
    assert held == pytest.approx(0.17 + EASIER * math.sqrt(0.17 * 0.83))
    assert running.callback.unit.item() == pytest.approx(math.sqrt(held * (1 - held)))
    for _ in range(20):
        weights = running.update([45], [100])
    assert weights[1] > 0.6


def test_a_hold_short_of_an_aim_ends_where_the_aim_is_met() -> None:
    """The rate meets the threshold, not the aim, at which the constraint stalled."""
    objective = Objective("goal", {"lava": Constraint(at_most=0.3, aim=0.1)})
    running = DualRun(LagrangianCallback(DampedAscent(margin=0.0), StallDetector(updates=40)), objective).start()
    with pytest.warns(UserWarning, match="Until the aim is met, training holds what was reached"):
        for _ in range(100):
            running.update([25], [100])
    assert running.callback.held == pytest.approx({"lava": 0.25 + EASIER * math.sqrt(0.21)})


def test_a_looser_threshold_replaces_what_was_held() -> None:
    running = run(DampedAscent(margin=0.0), stall=StallDetector(updates=50))
    with pytest.warns(UserWarning, match="training holds what was reached"):
        for _ in range(60):
            running.update([5, 0], [10, 10])
    state = saved(running.callback)
    looser = replace(OBJECTIVE.constraints["lava"], at_most=0.8)
    objective = Objective("goal", OBJECTIVE.constraints | {"lava": looser})
    callback = LagrangianCallback(DampedAscent(margin=0.0))
    DualRun(callback, objective, done=60).start(state)
    assert callback.targets.targets[0].item() == pytest.approx(0.8)


def test_the_papers_controller_goes_on() -> None:
    running = run(SoftmaxAdam(lr=1.0), stall=StallDetector(updates=50))
    with pytest.warns(UserWarning, match="try at_most: 0.9.$"):
        for _ in range(150):
            running.update([9, 0], [10, 10])
    assert not running.callback.held


def test_a_high_price_is_no_stall() -> None:
    """A constraint on its threshold, with a multiplier that only noise lifts to its cap, keeps the cap."""
    objective = Objective("goal", {"lava": Constraint(at_most=0.1)})
    callback = LagrangianCallback(DampedAscent(init=9.5, margin=0.0), stall=StallDetector(updates=100))
    running, draw = DualRun(callback, objective).start(), random.Random(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(1000):
            callback.controller.integral.fill_(math.log(9.9))  # whatever its noise, the price stays
            running.update([sum(draw.random() < 0.1 for _ in range(128))], [128])


def test_progress_along_a_line_is_no_stall() -> None:
    """The violation stays, because the threshold falls with the rate; so too in a resumed run."""
    objective = Objective("goal", {"lava": Constraint(at_most=0.05, start=0.45, over=300)})
    running = DualRun(LagrangianCallback(DampedAscent(), stall=StallDetector(updates=100)), objective).start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for update in range(301):
            if update == 150:
                state = saved(running.callback)
                callback = LagrangianCallback(DampedAscent(), stall=StallDetector(updates=100))
                running = DualRun(callback, objective, done=update).start(state)
            running.update([1000 * (objective.constraints["lava"].threshold(update) + 0.05)], [1000])
        assert running.callback.stall.count.tolist() == [0]
    with pytest.warns(UserWarning, match="has had at least 90%"):
        for _ in range(100):
            running.update([100], [1000])


def test_multipliers_of_a_version_that_moved_them_otherwise_are_refused() -> None:
    running = run(DampedAscent())
    running.update([1, 1], [10, 10])
    state = saved(running.callback)
    del state["controller"]["total"]
    with pytest.raises(UserError, match=r"state of this version's DampedAscent, .* has another \(total\)"):
        DualRun(LagrangianCallback(DampedAscent()), done=1).start(state)
