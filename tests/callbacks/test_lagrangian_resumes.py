"""Checkpoints of the dual: a resumed run has the weights of a run that never stopped."""

import pytest
import torch

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.multipliers import PID, ProjectedAscent, SoftmaxAdam, StallDetector, guards
from tests.dual_run import COUNTS, DualRun, run, same, saved


@pytest.mark.parametrize(
    "make", [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_continues_bit_for_bit(make, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "WEIGHT", 0.51)  # updates begin to count soon

    def fresh() -> LagrangianCallback:
        return LagrangianCallback(make(), stall=StallDetector(updates=4), every_n_updates=2)

    original = DualRun(fresh()).start()
    for counts in COUNTS[:stop]:
        original.update(*counts)
    # At odd updates, the counts of the last one wait for their dual step.
    resumed = DualRun(fresh(), done=stop).start(saved(original.callback))
    assert torch.equal(resumed.module.weights, original.module.weights)
    for counts in [*COUNTS[stop:], *COUNTS]:
        assert resumed.update(*counts) == original.update(*counts)
    assert same(saved(resumed.callback), saved(original.callback))


def test_loading_does_not_change_the_file() -> None:
    original = run(SoftmaxAdam())
    original.update(*COUNTS[0])
    state, kept = saved(original.callback), saved(original.callback)
    resumed = DualRun(LagrangianCallback(SoftmaxAdam()), done=1).start(state)
    resumed.update(*COUNTS[1])
    assert same(state, kept)
