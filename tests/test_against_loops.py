"""Counts, components, advantages, own signals, dual steps and evaluations of generated runs against plain loops."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Examples, PromptGroups, Rollouts, Signal
from lightning_cgrpo.grpo.advantages import GDPO, LeaveOneOut, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.grpo.critic.critic import Critic
from lightning_cgrpo.grpo.critic.critic_advantages import LagrangianGAE, ScalarizedGAE
from lightning_cgrpo.grpo.own_signals import own_signals
from lightning_cgrpo.grpo.returns_to_go import ReturnsToGo
from lightning_cgrpo.objective.evaluation import RunningSums
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.group_statistics import GroupStatistics, group_statistics
from lightning_cgrpo.objective.measurement import behavior_metrics, behavior_sums, prompt_sums
from lightning_cgrpo.objective.moments import clustered_rates
from tests.dual_run import DualRun, Recording
from tests.generated import Batch, Run, examples, make_run, runs, units
from tests.loops.advantages import gdpo, leave_one_out, pooled_advantages, scalarized_advantages, scalarized_rewards
from tests.loops.components import components
from tests.loops.counts import Values, answers, counted, own_steps
from tests.loops.dual import dual_steps
from tests.loops.evaluation import cluster_counts, metrics, ratios
from tests.loops.step_advantages import critic_advantages, returns_to_go


def made(run: Run, batch: Batch) -> dict[str, Signal]:
    """The task's signals, those of subsets, and the policy's own."""
    own = own_signals(sorted(set(run.objective.policy_signals.values())), batch.examples, batch.rollouts)
    return {**run.objective.made(batch.signals, batch.prompts), **own}


def statistics_of(run: Run, batch: Batch) -> GroupStatistics:
    return group_statistics(run.objective.components(made(run, batch)))


def tensor(values: Values, shape: tuple[int, ...]) -> Tensor:
    """Zero where there is no value."""
    out = torch.zeros(shape, dtype=torch.float64)
    for at, value in values.items():
        out[at] = value
    return out


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected, rtol=1e-7, atol=1e-7)


@examples
@given(runs())
def test_counts_and_own_signals(run: Run) -> None:
    [batch] = run.batches
    counts = run.objective.counts(made(run, batch))
    assert counts.keys() == run.objective.constraints.keys()
    for name, constraint in run.objective.constraints.items():
        for b in range(batch.shape[0]):
            pairs = [counted(batch, name, constraint, b, g) for g in range(batch.shape[1])]
            expected = [sum(pair[i] for pair in pairs) for i in (0, 1)]
            assert counts[name][:, b].tolist() == pytest.approx(expected, abs=1e-9), name


@examples
@given(runs())
def test_components(run: Run) -> None:
    """Their sums over answers, their steps, and where they apply."""
    [batch] = run.batches
    got = run.objective.components(made(run, batch))
    by_step = got.by_step(batch.rollouts.mask)
    for j, part in enumerate(components(run, batch)):
        assert {tuple(at) for at in got.applicable[j].nonzero().tolist()} == set(part.sums)
        steps = {
            (*at, t): value
            for at, values in part.steps.items()
            for t, value in zip(own_steps(batch, *at), values, strict=False)
        }
        assert_close(by_step[j], tensor(steps, batch.shape))
        for at, value in part.sums.items():
            assert float(got.values[j][at]) == pytest.approx(value, abs=1e-6)


ESTIMATORS = {
    "group": (ScalarizedAdvantages("group"), scalarized_advantages),
    "rewards": (ScalarizedRewards(), lambda run, batch: scalarized_rewards(run, batch, over_batch=False)),
    "batch": (ScalarizedRewards("batch"), lambda run, batch: scalarized_rewards(run, batch, over_batch=True)),
    "leave one out": (LeaveOneOut(), leave_one_out),
    "GDPO": (GDPO(), lambda run, batch: gdpo(run, batch, 1e-4)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@examples
@given(run=runs())
def test_advantages_of_answers(name: str, run: Run) -> None:
    [batch] = run.batches
    estimator, expected = ESTIMATORS[name]
    got = estimator(batch.rollouts, statistics_of(run, batch), run.component_weights)
    assert_close(got, tensor(expected(run, batch), batch.shape[:2]))


@examples
@given(runs(updates=3))
@example(make_run(np.random.default_rng(10_000_000), 3, False))  # a cost of which only rounding is left
def test_the_default_advantages_over_some_updates(run: Run) -> None:
    estimator = ScalarizedAdvantages()
    each = [replace(run, batches=[batch]) for batch in run.batches]
    for batch, expected in zip(run.batches, pooled_advantages(each), strict=True):
        got = estimator(batch.rollouts, statistics_of(run, batch), run.component_weights)
        assert_close(got, tensor(expected, batch.shape[:2]))


@pytest.mark.parametrize("name", [*ESTIMATORS, "pooled"])
@examples
@given(data=st.data())
def test_effective_weights_expand_the_advantage(name: str, data: st.DataObject) -> None:
    """The effective-weight theorem (paper, appendix A): A = sum_j w~_j Z_j; of GDPO up to the batch's mean."""
    estimator = ESTIMATORS[name][0] if name in ESTIMATORS else ScalarizedAdvantages()
    # In partly applicable groups, the default compares with other groups too.
    run = data.draw(runs(every=name == "pooled"))
    [batch] = run.batches
    statistics = statistics_of(run, batch)
    advantages = estimator(batch.rollouts, statistics, run.component_weights)
    effective = estimator.effective_weights(statistics, run.component_weights)
    rest = (advantages - torch.einsum("jb,jbg->bg", effective, statistics.standardized))[statistics.used]
    assert len(rest) == 0 or (rest - (rest[0] if name == "GDPO" else 0)).abs().max() < 1e-7


@pytest.mark.parametrize("gamma", [1.0, 0.7])
@examples
@given(run=runs())
def test_returns_to_go(gamma: float, run: Run) -> None:
    [batch] = run.batches
    got = ReturnsToGo(gamma)(batch.rollouts, statistics_of(run, batch), run.component_weights)
    assert_close(got, tensor(returns_to_go(run, batch, gamma), batch.shape))


class Given(Critic):
    """Reads its predictions from the observations."""

    def __init__(self, language: bool) -> None:
        super().__init__()
        self.language, self.weight = language, torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    @property
    def network(self) -> "Given":
        return self

    def load(self, components: int) -> None: ...

    def examples(self, rollouts: Rollouts) -> Examples:
        return units(rollouts, self.language, {})

    def forward(self, examples: Examples) -> Tensor:
        return examples.inputs["observations"]


@pytest.mark.parametrize("kind", [ScalarizedGAE, LagrangianGAE])
@examples
@given(run=runs())
def test_advantages_with_a_critic(kind: type[ScalarizedGAE], run: Run) -> None:
    [batch] = run.batches
    estimator = kind(Given(batch.examples.mask.dim() == 2), torch.optim.SGD, gamma=0.9, gae_lambda=0.8)
    # The critic has as many heads as there are components.
    heads = len(run.component_weights)
    batch.rollouts.inputs["observations"] = batch.rollouts.inputs["observations"][..., :heads]
    got = estimator(batch.rollouts, statistics_of(run, batch), run.component_weights)
    observed = batch.rollouts.inputs["observations"]
    predicted = {at: observed[at][own_steps(batch, *at)] for at in answers(batch)}
    expected = critic_advantages(run, batch, predicted, 0.9, 0.8, standardized=kind is ScalarizedGAE)
    assert_close(got, tensor(expected, batch.shape))


@examples
@given(runs(updates=5), st.integers(1, 2), st.sampled_from([0.0, 0.5]), st.booleans())
def test_dual_steps(run: Run, every: int, margin: float, standard: bool) -> None:
    """The controller is told how far the rates exceed their targets, and which were observed."""
    if not run.objective.constrained:
        return
    controller = Recording(*run.weights.tolist())
    controller.margin, controller.standard_units = margin, standard
    running = DualRun(LagrangianCallback(controller, every_n_updates=every), run.objective).start()
    for batch in run.batches:
        signals = made(run, batch)
        counts = run.objective.counts(signals)
        pairs = [counts[name].sum(1).tolist() for name in run.objective.constrained]
        running.update([pair[0] for pair in pairs], [pair[1] for pair in pairs], signals)
    steps = dual_steps(run.objective, run.batches, every, margin, standard)
    expected = [list(step.values()) for step in steps if any(value is not None for value in step.values())]
    assert [observed for _, observed in controller.told] == [[v is not None for v in step] for step in expected]
    for (told, _), step in zip(controller.told, expected, strict=True):
        assert told == pytest.approx([value or 0.0 for value in step], rel=1e-6, abs=1e-6)


@examples
@given(runs(updates=3), st.booleans())
def test_evaluations(run: Run, apart: bool) -> None:
    """Metrics, standard errors and rates, whatever the batches; repeats of a prompt are one prompt."""
    running, objective = RunningSums(), run.objective
    for batch in run.batches:
        rows = prompt_sums(objective, made(run, batch), batch.rollouts)
        for part in torch.arange(batch.shape[0]).split(1 if apart else batch.shape[0]):
            columns = {"prompt": [batch.prompts.columns["prompt"][row] for row in part]}
            running.add({name: sums[part] for name, sums in rows.items()}, PromptGroups(part, columns))
    got = running.evaluation(objective)
    expected = metrics(run)
    assert got.metrics == pytest.approx({tag: value for tag, (value, _) in expected.items()}, abs=1e-9)
    for tag, (_, error) in expected.items():
        assert got.standard_errors.get(tag, 0.0) == pytest.approx(error, rel=1e-6, abs=1e-9), tag
    by_tag = ratios(run)
    for name, constraint in objective.constraints.items():
        ratio, rate = by_tag.get(constraint.bound.tag(name)), got.rates.get(name)
        assert (ratio is None) == (rate is None)
        if rate is None:
            continue
        facts = rate.rate, rate.standard_error or 0.0, rate.prompts, rate.opportunities
        below = sum(ratio.below.values())
        assert facts == pytest.approx((ratio.value, ratio.standard_error, len(ratio.observed), below), abs=1e-6)
        if not constraint.bound.of_mean:
            counts = rate.violating, rate.clean, rate.violating_effective, rate.clean_effective
            assert (*counts, rate.most, rate.telling or 0.0) == pytest.approx(cluster_counts(ratio))


@examples
@given(runs())
def test_sums_of_an_update_are_those_of_its_prompts(run: Run) -> None:
    """Logged rates come from sums over the batch, with moments in place of the prompts."""
    [batch] = run.batches
    signals, running = made(run, batch), RunningSums()
    running.add(prompt_sums(run.objective, signals, batch.rollouts), PromptGroups(torch.arange(batch.shape[0])))
    expected = running.evaluation(run.objective)
    sums = {name: value.item() for name, value in behavior_sums(run.objective, signals, batch.rollouts).items()}
    assert behavior_metrics(run.objective, sums) == pytest.approx(dict(expected.metrics))
    got = clustered_rates(run.objective.constraints, sums, run.objective.means)
    assert got.keys() == expected.rates.keys()
    for name, rate in got.items():
        assert astuple(rate) == pytest.approx(astuple(expected.rates[name]), nan_ok=True), name


@examples
@given(runs(), st.data())
def test_a_value_that_is_not_finite_does_not_apply_and_is_counted(run: Run, data: st.DataObject) -> None:
    """A step that is not finite takes its answer out. Where a signal does not apply, NaN is no fault."""
    [batch] = run.batches
    name = data.draw(st.sampled_from(list(batch.signals)))
    part = data.draw(st.sampled_from(["value", "count", "opportunities"]))
    garbage = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    signal, [B, G, T] = batch.signals[name], batch.shape
    part = part if getattr(signal, part) is not None else "value"
    dirty = getattr(signal, part).clone()
    b, g, t = data.draw(st.tuples(st.integers(0, B - 1), st.integers(0, G - 1), st.integers(0, T - 1)))
    dirty[(b, g) if dirty.dim() == 2 else (b, g, t)] = garbage
    signals, faults = isolate_faults({**batch.signals, name: replace(signal, **{part: dirty})})
    applicable = torch.ones(B, G, dtype=torch.bool) if signal.applicable is None else signal.applicable.clone()
    assert faults[name].tolist() == [int(row == b and applicable[b, g]) for row in range(B)]
    assert all(not faults[other].any() for other in batch.signals if other != name)
    applicable[b, g] = False
    expected = replace(signal, applicable=applicable)
    assert [c.tolist() for c in signals[name].counts()] == [c.tolist() for c in expected.counts()]
    assert torch.equal(signals[name].total, expected.total)
