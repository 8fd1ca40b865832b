"""What two processes compute together is what one computes of all answers; each collective is called by both.

Processes are threads with a fake `torch.distributed` (`fake_world.py`). tests/test_processes.py has real ones.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective
from lightning_cgrpo.core.distributed import (
    all_sum,
    all_sum_named,
    gather_counts,
    gather_means,
    gather_objects,
    gather_objects_on_first,
    gather_rows,
    replicated,
    world,
)
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.grpo.advantages import GDPO, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.grpo.constrained_advantages import as_signals
from lightning_cgrpo.grpo.losses import aggregation_weights
from lightning_cgrpo.modules.dynamic_sampling import redraw
from lightning_cgrpo.multipliers import PID, DampedAscent, SoftmaxAdam
from lightning_cgrpo.objective.evaluation import RunningSums
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.measurement import best_sums, prompt_sums
from lightning_cgrpo.objective.objective import Components
from tests.fake_world import in_processes

CPU = torch.device("cpu")
OBJECTIVE = Objective(
    {"speed": 1.0, "comfort": 0.3},
    {
        "polite": Constraint(at_least=0.9),
        "lava": Constraint(at_most=0.1, given="polite"),
        "slow": Constraint(mean_at_most=0.4, signal="comfort"),
    },
)
ROWS = {0: slice(0, 3), 1: slice(3, 5)}  # of five prompts
UNEVEN = {0: slice(0, 5), 1: slice(5, 5)}  # one process has none


def measured(seed=0, prompts=5, group=4):
    """Values of all prompts; speed does not apply to some answers."""
    draw = torch.Generator().manual_seed(seed)
    speed, comfort = torch.randn(2, prompts, group, generator=draw, dtype=torch.float64)
    speed[torch.rand(prompts, group, generator=draw) < 0.2] = torch.nan
    polite, lava = (torch.rand(2, prompts, group, generator=draw) < 0.6).double()
    return {"speed": speed, "comfort": comfort, "polite": polite, "lava": lava}


def of(rows, values):
    return {name: value[rows] for name, value in values.items()}


def same(state, expected):
    """States of nested dictionaries, tensors within rounding."""
    if isinstance(expected, dict):
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            same(state[name], value)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(state, expected, rtol=0, atol=1e-12, equal_nan=True)
    else:
        assert state == expected


def test_collectives_have_all_processes_values(monkeypatch):
    def collect(rank):
        own = torch.tensor([1.0, 10.0]) * (rank + 1)
        with replicated():
            alone = world(), all_sum(own).tolist(), gather_objects(rank), gather_counts(rank, CPU)
        return (
            world(),
            all_sum(own).tolist(),
            all_sum_named({"a": own[0], "b": own[1]}),
            gather_counts(rank + 5, CPU),
            gather_rows(torch.tensor([rank, 7])).tolist(),
            gather_objects({"rank": rank}),
            gather_objects_on_first(rank),
            gather_means({"x": [1.0 * rank], **({"only": [4.0]} if rank else {})}),
            own.tolist(),
            alone,
        )

    results, reductions = in_processes(monkeypatch, collect)
    for rank, found in enumerate(results):
        assert found[:6] == (
            (rank, 2),
            [3.0, 30.0],
            {"a": 3.0, "b": 30.0},
            [5, 6],
            [[0, 7], [1, 7]],
            [{"rank": 0}, {"rank": 1}],
        )
        assert found[6] == (None if rank else [0, 1]) and found[7] == {"only": 4.0, "x": 0.5}
        assert found[8] == [1.0 + rank, 10.0 + 10 * rank], "a sum leaves the given tensor"
        assert found[9] == ((0, 1), found[8], [rank], [rank])
    gathers = ["all_gather_object", "gather_object", "all_gather_object"]
    assert [name for name, _ in reductions] == ["all_reduce"] * 4 + gathers


@pytest.mark.parametrize("rows", [ROWS, UNEVEN])
@pytest.mark.parametrize("aggregation", ["sequence_sum", "sequence_mean", "token_mean", "constant"])
def test_weights_of_the_loss_are_those_of_all_answers(monkeypatch, aggregation, rows):
    """Times two, because gradients are averaged over the processes."""
    lengths = torch.tensor([[1, 4], [2, 2], [6, 0], [3, 5], [1, 1]])
    mask = torch.arange(6) < lengths[..., None]
    together = aggregation_weights(mask, aggregation, max_length=6)
    shares = {rank: mask[own] for rank, own in rows.items()}
    parts, reductions = in_processes(monkeypatch, lambda rank: aggregation_weights(shares[rank], aggregation, 6))
    torch.testing.assert_close(torch.cat(parts), 2 * together)
    assert reductions == [("all_reduce", (2,))]


@pytest.mark.parametrize("rows", [ROWS, UNEVEN])
@pytest.mark.parametrize("controller", [DampedAscent, PID, SoftmaxAdam])
def test_advantages_weights_and_states_are_those_of_all_answers(monkeypatch, controller, rows):
    """Three updates: the baseline, the deviation, the batch's rate of a condition, counts and means."""
    updates = [measured(seed) for seed in range(3)]
    alone = ConstrainedAdvantages(OBJECTIVE, controller())
    expected = [alone(values) for values in updates]

    def trained(rank):
        own = ConstrainedAdvantages(OBJECTIVE, controller())
        return [own(of(rows[rank], values)) for values in updates], own

    parts, _ = in_processes(monkeypatch, trained)
    for update, together in enumerate(expected):
        torch.testing.assert_close(torch.cat([own[update] for own, _ in parts]), together, rtol=0, atol=1e-12)
    for _, own in parts:
        same(own.state_dict(), alone.state_dict())
        assert own.weights == pytest.approx(alone.weights, abs=1e-12)
        assert own.thresholds == alone.thresholds


@pytest.mark.parametrize("rows", [ROWS, UNEVEN])
@pytest.mark.parametrize(
    "estimator", [ScalarizedAdvantages, lambda: ScalarizedRewards(scale="batch"), ScalarizedRewards, GDPO]
)
def test_estimators_standardize_over_all_answers(monkeypatch, estimator, rows):
    values = torch.stack([measured()["comfort"], measured(3)["comfort"]])
    everywhere = torch.ones_like(values, dtype=torch.bool)
    weights = torch.tensor([0.7, 0.3])

    def advantages(rows):
        statistics = group_statistics(Components(values[:, rows], everywhere[:, rows]))
        return estimator()(None, statistics, weights)

    together = advantages(slice(None))
    parts, _ = in_processes(monkeypatch, lambda rank: advantages(rows[rank]))
    torch.testing.assert_close(torch.cat(parts), together, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [ROWS, UNEVEN])
def test_evaluations_are_of_all_prompts(monkeypatch, rows):
    """Prompts of both processes, one of them twice; rates within reach, too."""
    values, texts = measured(), ["a", "b", "c", "a", "d"]
    mask = torch.ones(5, 4, 1, dtype=torch.bool)

    def evaluated(rows):
        objective = OBJECTIVE
        prompts = PromptGroups(torch.arange(5)[rows], {"prompt": texts[rows]})
        signals = objective.made(as_signals(of(rows, values)), prompts)
        sums, best = RunningSums(), RunningSums()
        rollouts = Rollouts(mask[rows].long()[..., 0], mask[rows], {})
        sums.add(prompt_sums(objective, signals, rollouts), prompts)
        best.add(best_sums(objective, signals), prompts)
        return sums.evaluation(objective), best.rates(objective.means)

    together, reached = evaluated(slice(None))
    parts, _ = in_processes(monkeypatch, lambda rank: evaluated(rows[rank]))
    assert together.prompts == 4 and together.repeats == 1
    for evaluation, best in parts:
        assert evaluation.metrics == pytest.approx(together.metrics)
        assert evaluation.standard_errors == pytest.approx(together.standard_errors)
        assert (evaluation.prompts, evaluation.repeats, evaluation.answers) == (4, 1, together.answers)
        for found, expected in ((evaluation.rates, together.rates), (best, reached)):
            rates = {name: of.rate for name, of in expected.items()}
            assert {name: of.rate for name, of in found.items()} == pytest.approx(rates)


def test_a_process_without_dull_groups_joins_the_rounds(monkeypatch):
    """The sampler may need all processes, so both draw as often; the second has nothing to redraw."""
    dull = {0: torch.tensor([[1.0, 1.0], [0.0, 1.0]]), 1: torch.tensor([[0.0, 1.0]])}

    def rounds(rank):
        drawn = []

        def draw(prompts, number):
            drawn.append(len(prompts))
            mask = torch.ones(len(prompts), 2, 1, dtype=torch.bool)
            value = torch.tensor([[1.0, 1.0 - (number == 1)]]).expand(len(prompts), 2)
            return Rollouts(mask.long(), mask, {}), {"m": Signal(value)}

        mask = torch.ones(len(dull[rank]), 2, 1, dtype=torch.bool)
        varies = lambda signals: signals["m"].value[:, 0] != signals["m"].value[:, 1]  # noqa: E731
        prompts = PromptGroups(torch.arange(len(mask)), {})
        result = redraw(draw, varies, prompts, Rollouts(mask.long(), mask, {}), {"m": Signal(dull[rank])}, 4)
        return drawn, result.signals["m"].value.tolist()

    (first, second), reductions = in_processes(monkeypatch, rounds)
    assert first == ([1, 1], [[1.0, 0.0], [0.0, 1.0]]) and second == ([0, 0], [[0.0, 1.0]])
    assert len(reductions) == 3


@pytest.mark.parametrize("trains", [True, False])
def test_trls_processes_take_their_rows_and_count_answers_once(monkeypatch, trains):
    """TRL gives each process the rewards of all; a group may lie in both processes."""
    pytest.importorskip("trl")
    from lightning_cgrpo.trl import lagrangian as ours

    objective = Objective("brief", {"vowels": Constraint(at_least=0.8)})
    rewards = torch.stack([measured()["comfort"].flatten(), measured()["polite"].flatten()], -1)[:12].float()
    alone = ConstrainedAdvantages(objective)
    signals = dict(zip(("brief", "vowels"), rewards.T.reshape(2, 3, 4), strict=True))
    before = ConstrainedAdvantages(objective).state_dict()
    together = (
        alone(signals).flatten()
        if trains
        else alone.evaluate(alone.objective.made(as_signals(signals), PromptGroups(torch.arange(0), {})))
    )

    def generation(rank):
        shown = []
        trainer = SimpleNamespace(
            model=SimpleNamespace(training=trains),
            num_generations=4,
            num_generations_eval=4,
            max_completion_length=6,
            reward_func_names=["brief", "vowels"],
            accelerator=SimpleNamespace(process_index=rank, gather=lambda lengths: torch.cat(gather_objects(lengths))),
            state=SimpleNamespace(global_step=1, stateful_callbacks={}),
            is_world_process_zero=lambda: rank == 0,
            _logs={"advantages": shown},
            _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        )
        lagrangian = object.__new__(ours.Lagrangian)
        lagrangian.trainer, lagrangian.objective, lagrangian._rewards = trainer, objective, rewards
        lagrangian.advantages, lagrangian.tables = ConstrainedAdvantages(objective), ours.RateTables(objective)
        output = {"advantages": torch.zeros(6), "completion_mask": torch.ones(6, 5)}
        lagrangian._generate_and_score = lambda inputs: dict(output)
        inputs = [{"prompt": f"{(6 * rank + row) // 4}"} for row in range(6)]
        lagrangian._prompts = [row["prompt"] for row in inputs]
        advantages = lagrangian.generate_and_score(inputs)["advantages"]
        rates = trainer._metrics["train" if trains else "eval"]["rate/vowels"]
        return advantages, lagrangian.advantages.state_dict(), rates

    monkeypatch.setattr(
        "accelerate.utils.gather_object", lambda rows: [row for part in gather_objects(rows) for row in part]
    )
    parts, _ = in_processes(monkeypatch, generation)
    torch.testing.assert_close(torch.cat([own for own, _, _ in parts]), together.flatten().float())
    expected = alone.state_dict() if trains else before
    for _, state, rates in parts:
        same(state["dual"], expected["dual"])
        same(state["estimator"], expected["estimator"])
        assert rates == [pytest.approx(float(rewards[:, 1].mean()))]
