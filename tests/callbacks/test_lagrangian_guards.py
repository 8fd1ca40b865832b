"""Guards of the dual: stalls and caps, as a run meets them."""

import math
import random
import warnings

import pytest

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.multipliers import DampedAscent, StallDetector
from lightning_cgrpo.objective.objective import Constraint, Objective
from tests.dual_run import DualRun, Frozen, run, saved


def test_a_stalled_constraint_is_named_once() -> None:
    running = run(Frozen(0.01, 0.04, 0.95), stall=StallDetector(weight=0.9, updates=4))
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


def test_a_lowered_cap_is_told_when_it_falls() -> None:
    running = run(DampedAscent(), stall=StallDetector(updates=50))
    with pytest.warns(UserWarning, match=r"'lava' has had at least 90%.* capped at half until it is met") as caught:
        for _ in range(150):
            running.update([9, 0], [10, 10])
    assert len(caught) == 1
    assert running.callback.controller.caps.tolist() == [5, 10]
    while running.update([0, 0], [10, 10])[1] > 0.1:
        pass
    assert running.callback.controller.caps.tolist() == [10, 10], "once it is met, it has its cap again"


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
