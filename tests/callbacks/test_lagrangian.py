"""The callback that moves the multipliers: alone with counts given to it, and in real training."""

import io
import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, EnvironmentSampler, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.callbacks import FixedWeights, LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import (
    PID,
    AimForTest,
    Controller,
    DampedAscent,
    ExponentiatedGradient,
    ProjectedAscent,
    ResilientSlack,
    SoftmaxAdam,
    StallDetector,
    WeightBounds,
)
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.rollout import Signal
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask

OBJECTIVE = Objective(
    "goal",
    {
        "lava": Constraint(at_most=0.1),
        "seen": Constraint(role="monitor", signal="battery"),
        "safe": Constraint(at_least=0.7),
    },
)
THRESHOLDS = [0.1, 0.3]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Frozen(Controller):
    """Does not move."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.given = weights

    @property
    def weights(self) -> Tensor:
        return self.fixed

    def _allocate(self, size: int) -> None:
        self.register_buffer("fixed", numbers(*self.given))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        pass


class Recording(Frozen):
    """Remembers what it was told."""

    def _allocate(self, size: int) -> None:
        super()._allocate(size)
        self.told: list[tuple[list[float], list[bool]]] = []

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        self.told.append((violations.tolist(), observed.tolist()))


class Run:
    """As much of a training run as the callback touches. Updates have counts, and nothing else: no reward."""

    def __init__(self, callback: LagrangianCallback, objective: Objective = OBJECTIVE, done: int = 0) -> None:
        self.callback = callback
        self.logged: list[tuple[dict[str, float], int]] = []
        logger = SimpleNamespace(log_metrics=lambda metrics, step: self.logged.append((metrics, step)))
        weights = torch.zeros(len(objective.weight_names), dtype=torch.float64)
        self.module = SimpleNamespace(
            objective=objective, weights=weights, device=torch.device("cpu"), loggers=[logger], thresholds={}
        )
        steps = {"global_step": done, "log_every_n_steps": 1, "estimated_stepping_batches": 1_000}
        self.trainer = SimpleNamespace(**steps, callbacks=[])
        callback.setup(self.trainer, self.module, "fit")

    def start(self, state: dict[str, Any] | None = None) -> "Run":
        if state is not None:
            self.callback.load_state_dict(state)
        self.callback.on_train_start(self.trainer, self.module)
        return self

    def update(self, violations: list[float], opportunities: list[float]) -> list[float]:
        self.trainer.global_step += 1
        outputs = {"violations": numbers(*violations), "opportunities": numbers(*opportunities)}
        self.callback.on_train_batch_end(self.trainer, self.module, outputs, None, 0)
        return self.module.weights.tolist()


def run(*arguments: Any, **named: Any) -> Run:
    return Run(LagrangianCallback(*arguments, **named)).start()


COUNTS = [([3, 2], [10, 4]), ([0, 1], [7, 9]), ([9, 0], [10, 1]), ([1, 5], [12, 6]), ([2, 2], [20, 4])]


def adam(counts: list[tuple[list[float], list[float]]], lr: float) -> Iterator[list[float]]:
    """Weights after each dual step of the paper, by hand: z ascends sum_k lambda_k v_k by Adam from 0.02."""
    z, m, s = [0.02] * 3, [0.0] * 3, [0.0] * 3
    for step, (violations, opportunities) in enumerate(counts, 1):
        v = [0.0] + [a / b - d for a, b, d in zip(violations, opportunities, THRESHOLDS, strict=True)]
        weights = [math.exp(x) / sum(map(math.exp, z)) for x in z]
        mean = sum(w * x for w, x in zip(weights, v, strict=True))
        for j in range(3):
            g = weights[j] * (v[j] - mean)
            m[j] = 0.9 * m[j] + 0.1 * g
            s[j] = 0.999 * s[j] + 0.001 * g * g
            z[j] += lr * (m[j] / (1 - 0.9**step)) / (math.sqrt(s[j] / (1 - 0.999**step)) + 1e-8)
        yield [math.exp(x) / sum(map(math.exp, z)) for x in z]


class TestDualStep:
    def test_is_adams_on_rate_minus_threshold(self) -> None:
        running = run(SoftmaxAdam(lr=0.05))
        assert running.module.weights.tolist() == pytest.approx([1 / 3] * 3)
        for counts, expected in zip(COUNTS, adam(COUNTS, 0.05), strict=True):
            assert running.update(*counts) == pytest.approx(expected, rel=1e-10)

    def test_the_controller_is_told_rates_minus_thresholds(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller)
        for violations, opportunities in COUNTS:
            running.update(violations, opportunities)
            told, observed = controller.told[-1]
            assert told == [v / n - d for v, n, d in zip(violations, opportunities, THRESHOLDS, strict=True)]
            assert observed == [True, True]

    @pytest.mark.parametrize("asked", [True, None])
    def test_standard_units(self, asked: bool | None) -> None:
        """For a controller that wants them, or for any controller by an argument."""
        controller = Recording(0.2, 0.3, 0.5)
        controller.standard_units = asked is None
        running = run(controller, standard_units=asked)
        running.update([3, 1], [10, 10])
        assert controller.told[-1][0] == pytest.approx([0.2 / 0.3, -0.2 / math.sqrt(0.21)])

    def test_standard_units_of_what_the_slack_leaves(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller, slack=ResilientSlack(alpha=2.0), standard_units=True)
        running.update([3, 1], [10, 10])
        assert controller.told[-1][0] == pytest.approx([(0.2 - 0.15) / 0.3, (-0.2 - 0.25) / math.sqrt(0.21)])

    def test_aims_for_a_test(self, caplog) -> None:
        """The controller sees tighter thresholds, in units of the declared ones, and the aims are logged."""
        controller, aim = Recording(0.2, 0.3, 0.5), AimForTest(100, 0.9)
        with caplog.at_level("INFO"):
            running = run(controller, aim=aim, standard_units=True)
        running.update([3, 1], [10, 10])
        lava, safe = aim(numbers(0.1, 0.3)).tolist()
        assert lava < 0.1 and safe < 0.3
        assert controller.told[-1][0] == pytest.approx([(0.3 - lava) / 0.3, (0.1 - safe) / math.sqrt(0.21)])
        assert running.logged == [({"aim/lava": pytest.approx(lava), "aim/safe": pytest.approx(1 - safe)}, 0)]
        assert f"lava <= {lava:.4g} instead of 0.1, safe >= {1 - safe:.4g} instead of 0.7" in caplog.text

    def test_the_default_controller(self) -> None:
        """In the first update the margin leaves nothing of the thresholds."""
        running = run()
        lava, safe = (math.exp(2 + 5 / 60 * violation) for violation in (0.2 / 0.3, 0.3 / math.sqrt(0.21)))
        total = 1 + lava + safe
        assert running.update([2, 3], [10, 10]) == pytest.approx([1 / total, lava / total, safe / total])

    def test_the_margin_falls_with_the_updates(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        controller.margin = 0.5
        running = run(controller)
        for update, (violations, opportunities) in enumerate(COUNTS):
            running.update(violations, opportunities)
            aims = [d * (1 - 0.5 / math.sqrt(1 + update)) for d in THRESHOLDS]
            rates = [v / n for v, n in zip(violations, opportunities, strict=True)]
            assert controller.told[-1][0] == pytest.approx([r - aim for r, aim in zip(rates, aims, strict=True)])
        left = 1 - 0.5 / math.sqrt(2)
        assert running.logged[1] == (
            {"aim/lava": pytest.approx(0.1 * left), "aim/safe": pytest.approx(1 - 0.3 * left)},
            1,
        )

    def test_a_high_threshold_has_a_small_margin(self) -> None:
        """A bound of 0.9 allows 0.8 in the first update, as a bound of 0.1 forbids more than 0."""
        objective = Objective("reward", {"lava": Constraint(at_most=0.9), "safe": Constraint(at_least=0.9)})
        controller = Recording(0.2, 0.3, 0.5)
        controller.margin = 1.0
        running = Run(LagrangianCallback(controller), objective).start()
        running.update([9, 1], [10, 10])
        assert controller.told[-1][0] == pytest.approx([0.9 - 0.8, 0.1])

    def test_counts_of_one_step_do_not_leak_into_the_next(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller)
        running.update([10, 10], [10, 10])
        running.update([0, 0], [1, 1])
        assert controller.told[-1][0] == [-0.1, -0.3]

    def test_pools_the_counts_of_several_updates(self) -> None:
        """3 of 10 and then 0 of 90 is a rate of 0.03, not 0.15."""
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller, every_n_updates=3)
        for violations, opportunities in COUNTS[:2]:
            running.update(violations, opportunities)
            assert controller.told == []
        running.update(*COUNTS[2])
        assert controller.told == [([12 / 27 - 0.1, 3 / 14 - 0.3], [True, True])]
        for counts in COUNTS[:3]:
            running.update(*counts)
        assert len(controller.told) == 2 and controller.told[0] == controller.told[1]

    def test_pooling_equals_one_update_with_all_the_counts(self) -> None:
        pooled, single = run(SoftmaxAdam(), every_n_updates=5), run(SoftmaxAdam())
        total = [[sum(c[i][k] for c in COUNTS) for k in range(2)] for i in range(2)]
        for counts in COUNTS:
            weights = pooled.update(*counts)
        assert weights == single.update(*total)

    def test_a_single_constraint(self) -> None:
        """torchmetrics makes a scalar of one rate."""
        controller = Recording(0.5, 0.5)
        running = Run(LagrangianCallback(controller), Objective("goal", {"lava": Constraint(at_most=0.25)})).start()
        running.update([1], [2])
        running.update([0], [0])
        assert controller.told == [([0.25], [True])]

    def test_drifts_are_shares_of_their_bound(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        drifts = {"drift": Constraint(signal="kl", mean_at_most=0.05), "gap": Constraint(mean_at_most=0.4)}
        running = Run(LagrangianCallback(controller), Objective("goal", drifts)).start()
        running.update([0.8, 3.0], [10, 10])  # means of 0.08 and 0.3
        assert controller.told == [([pytest.approx(0.6), pytest.approx(-0.25)], [True, True])]


class TestNoOpportunity:
    @pytest.mark.parametrize(
        "make", [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID], ids=lambda make: make.__name__
    )
    def test_leaves_the_state_alone(self, make) -> None:
        running = run(make(), stall=StallDetector(weight=0.51, updates=5))
        for counts in COUNTS:
            running.update(*counts)
        before, weights = saved(running.callback), running.module.weights.clone()
        running.update([0, 0], [0, 0])
        assert same(saved(running.callback), before)
        assert torch.equal(running.module.weights, weights)

    def test_of_one_constraint_is_told_to_the_controller(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller)
        running.update([0, 1], [0, 2])
        assert controller.told == [([0.0, 0.2], [False, True])]

    def test_of_one_constraint_leaves_its_logit_alone(self) -> None:
        running = run(SoftmaxAdam())
        for counts in COUNTS:
            running.update(*counts)
        logits = [logit.item() for logit in running.callback.controller.logits]
        running.update([0, 1], [0, 2])
        after = [logit.item() for logit in running.callback.controller.logits]
        assert after[1] == logits[1] and after[0] != logits[0] and after[2] != logits[2]


class TestGuards:
    def test_bounds_are_what_the_policy_sees(self) -> None:
        bounds = WeightBounds(floor={"reward": 0.5}, cap={"safe": 0.1})
        running = run(Frozen(0.2, 0.3, 0.5), bounds=bounds)
        expected = [0.5, 0.4, 0.1]
        assert running.module.weights.tolist() == pytest.approx(expected)
        assert running.update(*COUNTS[0]) == pytest.approx(expected)
        assert running.callback.controller.weights.tolist() == [0.2, 0.3, 0.5]

    def test_bounds_on_an_unknown_name(self) -> None:
        with pytest.raises(ValueError, match="Did you mean 'lava'"):
            run(SoftmaxAdam(), bounds=WeightBounds(floor={"lavva": 0.1}))

    def test_slack_gives_way_in_proportion_to_the_weight(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller, slack=ResilientSlack(alpha=2.0))
        running.update([5, 5], [10, 10])
        assert controller.told[0][0] == pytest.approx([0.5 - 0.1 - 0.15, 0.5 - 0.3 - 0.25])
        assert running.logged == [({"slack/lava": pytest.approx(0.15), "slack/safe": pytest.approx(0.25)}, 0)]

    def test_slack_follows_the_controllers_own_weights(self) -> None:
        controller = Recording(0.2, 0.3, 0.5)
        running = run(controller, slack=ResilientSlack(alpha=2.0), bounds=WeightBounds(cap=0.4))
        assert running.module.weights.tolist() != [0.2, 0.3, 0.5]
        running.update([5, 5], [10, 10])
        assert controller.told[0][0] == pytest.approx([0.5 - 0.1 - 0.15, 0.5 - 0.3 - 0.25])

    def test_slack_is_logged_when_logging_is_due(self) -> None:
        running = run(Frozen(0.2, 0.3, 0.5), slack=ResilientSlack())
        running.trainer.log_every_n_steps = 2
        for counts in COUNTS:
            running.update(*counts)
        assert [step for _, step in running.logged] == [0, 2, 4]

    def test_a_stalled_constraint_is_named_once(self) -> None:
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

    def test_another_objective_has_its_own_thresholds(self) -> None:
        callback = LagrangianCallback()
        for bound in (0.5, 0.01):
            Run(callback, Objective("goal", {"lava": Constraint(at_most=bound)})).start()
            assert callback.targets.in_force.tolist() == [bound]

    def test_a_lowered_cap_is_told_when_it_falls(self) -> None:
        running = run(DampedAscent(), stall=StallDetector(updates=50))
        with pytest.warns(UserWarning, match="'lava' has had at least 90%") as caught:
            for _ in range(150):
                running.update([9, 0], [10, 10])
        assert len(caught) == 1
        with pytest.warns(UserWarning, match=r"'lava' has stalled at .* the cap is 5 now, instead of 10,") as caught:
            for _ in range(150):
                running.update([9, 0], [10, 10])
        assert len(caught) == 1
        assert running.callback.controller.caps.tolist() == [5, 10]

    def test_progress_along_a_line_is_no_stall(self) -> None:
        """The violation stays, because the threshold falls with the rate; so too in a resumed run."""
        objective = Objective("goal", {"lava": Constraint(at_most=0.05, start=0.45, over=300)})
        running = Run(LagrangianCallback(DampedAscent(), stall=StallDetector(updates=100)), objective).start()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for update in range(301):
                if update == 150:
                    state = saved(running.callback)
                    callback = LagrangianCallback(DampedAscent(), stall=StallDetector(updates=100))
                    running = Run(callback, objective, done=update).start(state)
                running.update([1000 * (objective.constraints["lava"].threshold(update) + 0.05)], [1000])
            assert running.callback.controller.stall.count.tolist() == [0]
        with pytest.warns(UserWarning, match="has had at least 90%"):
            for _ in range(100):
                running.update([100], [1000])

    def test_the_proposed_threshold_is_looser_than_the_reached_rate(self) -> None:
        running = run(Frozen(0.01, 0.95, 0.04), stall=StallDetector(weight=0.9, updates=4))
        with pytest.warns(UserWarning, match=r"reached a rate of 0.417, so try at_most: 0.42\."):
            for _ in range(4):
                running.update([5, 0], [12, 10])

    def test_the_bounded_and_the_own_weight_are_logged(self) -> None:
        running = run(Frozen(0.2, 0.3, 0.5), bounds=WeightBounds(floor={"reward": 0.5}))
        running.update(*COUNTS[0])
        own = {"unbounded/reward": 0.2, "unbounded/lava": 0.3, "unbounded/safe": 0.5}
        assert running.logged == [(own, 0)]
        assert running.module.weights[0] == 0.5

    def test_logits_do_not_wind_up_behind_bounds(self) -> None:
        running = run(SoftmaxAdam(lr=0.05), bounds=WeightBounds(floor={"safe": 0.3}))
        for _ in range(100):
            running.update([1, 0], [10, 10])  # safe has slack
        assert running.module.weights[2] == pytest.approx(0.3)
        weights = [running.update([1, 9], [10, 10])[2] for _ in range(25)]
        assert weights[-1] > 0.4

    def test_bounds_that_do_not_bind_change_no_bit(self) -> None:
        free, bounded = run(SoftmaxAdam()), run(SoftmaxAdam(), bounds=WeightBounds(floor=0.01))
        for counts in COUNTS:
            assert bounded.update(*counts) == free.update(*counts)

    def test_progress_is_no_stall(self) -> None:
        running = run(Frozen(0.01, 0.04, 0.95), stall=StallDetector(weight=0.9, updates=4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for violations in (9, 9, 7, 7, 6, 6, 4, 4):
                running.update([0, violations], [10, 10])

    def test_the_stall_detector_looks_past_bounds_and_slack(self) -> None:
        guards = {"bounds": WeightBounds(cap=0.5), "slack": ResilientSlack(alpha=1.0)}
        running = run(Frozen(0.01, 0.04, 0.95), stall=StallDetector(weight=0.9, updates=4), **guards)
        with pytest.warns(UserWarning, match="Constraint 'safe'"):
            for _ in range(4):
                running.update([0, 9], [10, 10])


def saved(callback: LagrangianCallback) -> dict[str, Any]:
    """The callback's state, through a checkpoint file as Lightning reads it."""
    file = io.BytesIO()
    torch.save(callback.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


class TestCheckpoint:
    @pytest.mark.parametrize(
        "make", [SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID], ids=lambda make: make.__name__
    )
    @pytest.mark.parametrize("stop", [1, 3, 4])
    def test_continues_bit_for_bit(self, make, stop: int) -> None:
        def fresh() -> LagrangianCallback:
            return LagrangianCallback(make(), stall=StallDetector(weight=0.51, updates=3), every_n_updates=2)

        original = Run(fresh()).start()
        for counts in COUNTS[:stop]:
            original.update(*counts)
        # At odd updates, the counts of the last one wait for their dual step.
        resumed = Run(fresh(), done=stop).start(saved(original.callback))
        assert torch.equal(resumed.module.weights, original.module.weights)
        for counts in [*COUNTS[stop:], *COUNTS]:
            assert resumed.update(*counts) == original.update(*counts)
        assert same(saved(resumed.callback), saved(original.callback))

    def test_the_stall_detector_goes_on_counting(self) -> None:
        def fresh() -> LagrangianCallback:
            return LagrangianCallback(Frozen(0.01, 0.04, 0.95), stall=StallDetector(weight=0.9, updates=4))

        original = Run(fresh()).start()
        for _ in range(3):
            original.update([0, 9], [10, 10])
        resumed = Run(fresh(), done=3).start(saved(original.callback))
        with pytest.warns(UserWarning, match="Constraint 'safe' has had"):
            resumed.update([0, 9], [10, 10])

    def test_loading_does_not_change_the_file(self) -> None:
        original = run(SoftmaxAdam())
        original.update(*COUNTS[0])
        state, kept = saved(original.callback), saved(original.callback)
        resumed = Run(LagrangianCallback(SoftmaxAdam()), done=1).start(state)
        resumed.update(*COUNTS[1])
        assert same(state, kept)


class TestRefusals:
    def test_nothing_to_enforce(self) -> None:
        objective = Objective("goal", {"lava": Constraint(role="monitor")})
        with pytest.raises(ValueError, match="Expected the objective to have a constraint with role: constrain"):
            Run(LagrangianCallback(SoftmaxAdam()), objective)

    def test_every_n_updates(self) -> None:
        with pytest.raises(ValueError, match="Expected argument `every_n_updates` to be at least 1, but got 0"):
            LagrangianCallback(SoftmaxAdam(), every_n_updates=0)

    def test_impossible_counts(self) -> None:
        with pytest.raises(ValueError, match="Expected counts with 0 <= violations <= opportunities"):
            run(SoftmaxAdam()).update([math.nan, 0], [1, 1])


class Generous(GridworldTask):
    """Gives everybody 5 more."""

    def score(self, prompts, rollouts):
        signals = super().score(prompts, rollouts)
        return signals | {"goal": Signal(signals["goal"].value + 5)}


class Watch(Callback):
    """Remembers every update's weights, rewards, and how many of its steps were on lava or low on battery."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.rewards: list[Tensor] = []
        self.rates: list[list[float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.weights.append(pl_module.weights.clone())
        self.rewards.append(outputs["signals"]["goal"].value)
        info, steps = outputs["rollouts"].info, int(outputs["rollouts"].mask.sum())
        self.rates.append([int(info[name].sum()) / steps for name in ("lava", "battery")])


def train(callback: Callback, updates: int, task: GridworldTask | None = None, estimator=None) -> tuple[Tensor, Watch]:
    """The policy's parameters after training on a small grid, and what was seen on the way."""
    torch.manual_seed(0)
    module = ConstrainedGRPO(
        policy=CategoricalMLP(30, 5, hidden=(16,)),
        sampler=EnvironmentSampler(Gridworld(max_steps=20)),
        task=task or GridworldTask(),
        objective=Objective("goal", {"lava": Constraint(at_most=0.05), "battery": Constraint(at_most=0.01)}),
        estimator=estimator,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        optimization=Optimization(epochs=2, minibatch_size=100, aggregation="token_mean"),
        group_size=4,
    )
    watch = Watch()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=updates,
        callbacks=[callback, watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    data = GridworldDataModule(prompts_per_update=4, train_prompts=64, size=5, lava=6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers")
        trainer.fit(module, data)
    assert trainer.global_step == len(watch.weights) == updates
    return torch.cat([p.detach().flatten() for p in module.policy.parameters()]), watch


@pytest.mark.parametrize("estimator", [ScalarizedAdvantages, ScalarizedRewards])
def test_the_dual_never_sees_the_reward(estimator) -> None:
    """A constant added to it leaves every dual step bit-identical (and every policy step, too)."""
    policies, watched = zip(
        *[
            train(LagrangianCallback(SoftmaxAdam(lr=0.1)), 3, task, estimator())
            for task in (GridworldTask(), Generous())
        ],
        strict=True,
    )
    assert all(torch.equal(b, a + 5) for a, b in zip(watched[0].rewards, watched[1].rewards, strict=True))
    assert torch.cat(watched[0].rewards).unique().numel() == 2, "Expected rewards to vary."
    first, second = (torch.stack(watch.weights) for watch in watched)
    assert torch.equal(first, second) and len(first.unique(dim=0)) == 3
    assert torch.equal(*policies)


def test_fixed_weights_equal_a_frozen_controller_bit_for_bit() -> None:
    fixed, _ = train(FixedWeights({"reward": 0.5, "lava": 0.3, "battery": 0.2}), 5)
    frozen, watch = train(LagrangianCallback(Frozen(0.5, 0.3, 0.2)), 5)
    assert torch.equal(fixed, frozen)
    assert all(weights.tolist() == [0.5, 0.3, 0.2] for weights in watch.weights)
    other, _ = train(FixedWeights({"reward": 0.5, "lava": 0.2, "battery": 0.3}), 5)
    assert not torch.equal(fixed, other)


def test_multipliers_in_training_are_those_of_the_rates() -> None:
    """Every dual step of a real run again, from its rollouts alone."""
    _, watch = train(LagrangianCallback(ExponentiatedGradient(lr=1.0, clip=1.0)), 4)
    z = [0.0, 0.0]
    for rates, weights in zip(watch.rates, watch.weights, strict=True):
        z = [x + rate - threshold for x, rate, threshold in zip(z, rates, [0.05, 0.01], strict=True)]
        total = 1 + sum(map(math.exp, z))
        assert weights.tolist() == pytest.approx([1 / total, math.exp(z[0]) / total, math.exp(z[1]) / total], rel=1e-12)
    assert max(watch.rates)[0] > 0.05
