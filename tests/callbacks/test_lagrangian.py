"""The dual's steps and checkpoints: alone with counts given to them, and in real training."""

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.callbacks import FixedWeights, LagrangianCallback
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import PID, ProjectedAscent, SoftmaxAdam, StallDetector, guards
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from tests.dual_run import COUNTS, OBJECTIVE, THRESHOLDS, DualRun, Frozen, Recording, run, same, saved
from tests.grids import grid_module
from tests.memory import Memory
from tests.quiet import quiet_trainer
from tests.refusals import refused


def recorded(*weights: float, margin: float = 0.0, standard_units: bool = True, **constraints: Constraint) -> Any:
    """A controller that remembers what it is told, and its run."""
    controller = Recording(*weights)
    controller.margin, controller.standard_units = margin, standard_units
    return controller, DualRun(LagrangianCallback(controller), Objective("goal", constraints)).start()


class TestDualStep:
    def test_an_aim(self) -> None:
        """The controller sees the tighter threshold, in units of the declared one, and the aim is logged."""
        constraints = {**OBJECTIVE.constraints, "safe": Constraint(at_least=0.7, aim=0.8)}
        controller, running = recorded(0.2, 0.3, 0.5, **constraints)
        running.update([3, 1], [10, 10])
        assert controller.told[-1][0] == pytest.approx([0.2 / 0.3, (0.1 - 0.2) / math.sqrt(0.21)])
        assert running.logged == [({"aim/safe": pytest.approx(0.8)}, 0)]
        assert running.module.thresholds["safe"] == 0.7

    def test_the_default_controller(self) -> None:
        running = run()
        # Targets p with p + sqrt(p (1 - p) / 10) = d.
        lava_target, safe_target = 0.0388744973, 0.1788208208
        lava, safe = (0.2 - lava_target) / 0.3, (0.3 - safe_target) / math.sqrt(0.21)
        assert 5 * min(lava, safe) > 1 and math.exp(2) > 5  # both multipliers are at their caps
        assert lava > 0.5 > safe
        # Each uses up half of the bound of the sum, which has risen for one update. `lava` is far from its threshold.
        half = 5 * 2 ** (1 / 60) / 2
        relative = [1, half * 0.5 / lava, half]
        shares = [weight / sum(relative) for weight in relative]
        assert running.update([2, 3], [10, 10]) == pytest.approx(shares)
        # Each rate is 0, far inside its threshold: the integrals have moved little, and the smoothed violations fall.
        for _ in range(9):
            weights = running.update([0, 0], [10, 10])
        assert weights[1] < weights[0] / 2 and weights[2] < weights[0] / 2

    def test_the_margin_is_a_share_of_the_standard_error(self) -> None:
        """Of all answers so far and of the last validation: the target is half of it inside the threshold."""
        controller, running = recorded(0.2, 0.3, 0.5, margin=0.5, standard_units=False, **OBJECTIVE.constraints)
        answers = [0.0, 0.0]
        for update, (violations, opportunities) in enumerate(COUNTS):
            if update == 2:
                lava = ClusteredRate(0.5, 0.025, prompts=250, opportunities=500)  # worth 400 answers
                running.validate({"lava": lava, "safe": ClusteredRate(0.0, None, prompts=2, opportunities=2)})
            running.update(violations, opportunities)
            rates = [v / n for v, n in zip(violations, opportunities, strict=True)]
            told, _ = controller.told[-1]
            targets = [rate - excess for rate, excess in zip(rates, told, strict=True)]
            for k, (target, threshold) in enumerate(zip(targets, THRESHOLDS, strict=True)):
                answers[k] += opportunities[k]
                variance = 1 / answers[k]
                # Two prompts do not decide on a threshold of 0.3.
                variance += 1 / 400 if k == 0 and update >= 2 else 0.0
                error = math.sqrt(variance * target * (1 - target))
                assert target + 0.5 * error == pytest.approx(threshold)

    def test_a_validation_outside_of_training_moves_no_target(self) -> None:
        """`trainer.validate` before `trainer.fit`, with the same callback."""
        told = []
        for validated in (False, True):
            controller, running = recorded(0.2, 0.3, 0.5, margin=1.0, **OBJECTIVE.constraints)
            running.trainer.state.fn = "validate"
            if validated:
                running.validate({"lava": ClusteredRate(0.5, 0.2, prompts=250, opportunities=500)})
            running.trainer.state.fn = "fit"
            running.update([3, 1], [10, 10])
            told.append(controller.told)
        assert told[0] == told[1]

    def test_a_threshold_that_begins_at_1_is_no_violation(self) -> None:
        """Its own unit would be 0."""
        controller, running = recorded(0.5, 0.5, margin=1.0, long=Constraint(at_most=0.1, start=1.0, over=10))
        for _ in range(2):
            running.update([7.0], [10.0])
        for told, _ in controller.told:
            assert -1 < told[0] < 0

    @pytest.mark.parametrize("aim", [0.8, 0.7])
    def test_an_aim_has_the_margin_of_training_alone(self, aim: float) -> None:
        """An aim at the bound itself, too."""
        constraints = {**OBJECTIVE.constraints, "safe": Constraint(at_least=0.7, aim=aim)}
        controller, running = recorded(0.2, 0.3, 0.5, margin=1.0, standard_units=False, **constraints)
        running.validate({"safe": ClusteredRate(0.3, 0.01, prompts=100, opportunities=900)})
        for _ in range(2):
            running.update([1, 1], [10, 50])
        target = 1 / 50 - controller.told[-1][0][1]
        assert target + math.sqrt(target * (1 - target) / 100) == pytest.approx(1 - aim)

    def test_a_mean_has_a_margin_in_its_deviation(self) -> None:
        controller, running = recorded(0.5, 0.5, margin=1.0, cost=Constraint(mean_at_most=2.0))
        for _ in range(2):
            running.update([8.0], [4.0], {"cost": Signal(torch.tensor([[1.0, 3.0], [1.0, 3.0]]))})
        # The mean is at its bound; the answers' deviation is the root of 2, and a standard error of eight answers 0.5.
        assert controller.told[-1][0] == pytest.approx([0.5 / math.sqrt(2)])
        assert running.logged[1] == ({"aim/cost": pytest.approx(2 - 0.5)}, 1)

    @pytest.mark.parametrize("make", [SoftmaxAdam, PID])
    def test_without_opportunities_the_state_stays(self, make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guards, "WEIGHT", 0.51)  # updates begin to count soon
        running = run(make(), stall=StallDetector(updates=5))
        for counts in COUNTS:
            running.update(*counts)
        before, weights = saved(running.callback), running.module.weights.clone()
        running.update([0, 0], [0, 0])
        assert same(saved(running.callback), before)
        assert torch.equal(running.module.weights, weights)

    def test_nothing_to_enforce(self) -> None:
        objective = Objective("goal", {"lava": Constraint(role="monitor")})
        assert "role: constrain" in refused(DualRun, LagrangianCallback(), objective)


def train(callback: Callback, updates: int) -> tuple[Tensor, Memory]:
    """The policy's parameters after training on a small grid, and what was seen on the way."""
    module = grid_module(
        {"lava": Constraint(at_most=0.05), "battery": Constraint(at_most=0.01)},
        max_steps=20,
        lr=0.01,
        optimization=Optimization(epochs=2, minibatch_size=100, aggregation="token_mean"),
    )
    watch = Memory()
    data = GridworldDataModule(prompts_per_update=4, train_prompts=64, size=5, lava=6)
    quiet_trainer(callback, watch, max_steps=updates).fit(module, data)
    assert len(watch.weights) == updates
    return watch.parameters[-1], watch


def test_fixed_weights_equal_a_frozen_controller_bit_for_bit() -> None:
    fixed, _ = train(FixedWeights({"reward": 0.5, "lava": 0.3, "battery": 0.2}), 5)
    frozen, watch = train(LagrangianCallback(Frozen(0.5, 0.3, 0.2)), 5)
    assert torch.equal(fixed, frozen)
    assert all(weights.tolist() == [0.5, 0.3, 0.2] for weights in watch.weights)
    other, _ = train(FixedWeights({"reward": 0.5, "lava": 0.2, "battery": 0.3}), 5)
    assert not torch.equal(fixed, other)
    _, watch = train(FixedWeights({"battery": 0.2, "lava": 0.0}), 1)
    assert watch.weights[0].tolist() == [1.0, 0.0, 0.2], "the reward's is 1 unless it is given"
    assert "none for battery" in refused(train, FixedWeights({"lava": 0.1}), 1)


@pytest.mark.parametrize("every", [2, 3])
def test_the_dual_steps_after_every_nth_update(every):
    """After updates n, 2 n, …, by the rates of the n updates before."""
    controller = Recording(0.5, 0.3, 0.2)
    running = run(controller, every_n_updates=every)
    steps = []
    for number, (violations, opportunities) in enumerate(COUNTS * 2, start=1):
        before = len(controller.told)
        running.update(violations, opportunities)
        steps += [number] * (len(controller.told) - before)
    assert steps == list(range(every, 11, every))
    shares = [[sum(of) for of in zip(*(pair[kind] for pair in (COUNTS * 2)[:every]), strict=True)] for kind in (0, 1)]
    assert controller.told[0][1] == [True, True]
    signs = [violated / of > limit for violated, of, limit in zip(*shares, THRESHOLDS, strict=True)]
    assert [value > 0 for value in controller.told[0][0]] == signs


@pytest.mark.parametrize(
    "make", [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_run_continues_bit_for_bit(make, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
