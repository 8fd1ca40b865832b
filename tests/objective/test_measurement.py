"""What is shown of a batch: faults apart, and sums that add up."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.measurement import (
    EVERY,
    Evaluation,
    RunningSums,
    behavior_metrics,
    behavior_sums,
    best_sums,
    clustered_rates,
    isolate_faults,
    moments,
    prompt_sums,
)
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

NAN, INF = math.nan, math.inf


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


class TestIsolateFaults:
    @pytest.mark.parametrize("garbage", [NAN, INF, -INF])
    def test_a_value_that_is_not_finite_does_not_apply_and_is_counted(self, garbage: float) -> None:
        signals, faults = isolate_faults({"x": Signal(tensor([1, garbage], [garbage, 0.5]))})
        assert faults["x"].tolist() == [1, 1]
        assert signals["x"].value.tolist() == [[1, 0], [0, 0.5]]
        assert signals["x"].applicable.tolist() == [[True, False], [False, True]]
        violations, opportunities = signals["x"].counts()
        assert violations.tolist() == [[1, 0], [0, 0.5]] and opportunities.tolist() == [[1, 0], [0, 1]]

    @pytest.mark.parametrize("which", ["value", "count", "opportunities"])
    def test_nor_do_counts(self, which: str) -> None:
        parts = {name: tensor([3.0, 4.0, 5.0]) for name in ("value", "count", "opportunities")}
        parts[which][0, 1] = NAN
        signals, faults = isolate_faults({"x": Signal(**parts)})
        assert faults["x"] == 1
        violations, opportunities = signals["x"].counts()
        assert violations.tolist() == opportunities.tolist() == [[3, 0, 5]]
        assert signals["x"].applicable.tolist() == [[True, False, True]]

    def test_a_step_that_is_not_finite_takes_its_answer_out(self) -> None:
        signals, faults = isolate_faults({"x": Signal(torch.tensor([[[1.0, NAN], [1, 0]]]))})
        assert faults["x"].tolist() == [1]
        assert signals["x"].value.tolist() == [[[0, 0], [1, 0]]]
        assert signals["x"].applicable.tolist() == [[False, True]]

    def test_where_a_signal_does_not_apply_nan_is_no_fault(self) -> None:
        applicable = torch.tensor([[True, False, False, True]])
        signals, faults = isolate_faults({"x": Signal(tensor([1, NAN, INF, NAN]), applicable=applicable)})
        assert faults["x"] == 1
        assert signals["x"].applicable.tolist() == [[True, False, False, False]]
        only_inapplicable = Signal(tensor([1, NAN, INF, 0]), applicable=applicable)
        signals, faults = isolate_faults({"x": only_inapplicable})
        assert faults["x"] == 0 and signals["x"] is only_inapplicable


OBJECTIVE = Objective(
    {"goal": 1.0, "speed": 0.5},
    {
        "lava": Constraint(at_most=0.1),
        "polite": Constraint(at_least=0.9),
        "slow": Constraint(at_most=0.2, signal="speed", violated_below=2.0),
        "seen": Constraint(role="monitor", signal="lava"),
    },
)


def batch(prompts: int, seed: int = 0) -> tuple[dict[str, Signal], Rollouts]:
    generator = torch.Generator().manual_seed(seed)

    def random() -> torch.Tensor:
        return torch.rand(prompts, 4, generator=generator)

    steps = torch.randint(1, 6, (prompts, 4), generator=generator).float()
    signals = {
        "goal": Signal((random() < 0.5).float()),
        "speed": Signal((8 * random()).floor() / 2),
        "lava": Signal(steps, (random() * (steps + 1)).floor(), steps),
        "polite": Signal((random() < 0.7).float(), applicable=random() < 0.6),
    }
    mask = torch.arange(6) < steps[..., None]
    return signals, Rollouts(mask.long(), mask, {})


def rows(signals: dict[str, Signal], rollouts: Rollouts, part: slice) -> tuple[dict[str, Signal], Rollouts]:
    def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor[part]

    cut_signals = {
        name: Signal(cut(s.value), cut(s.count), cut(s.opportunities), cut(s.applicable)) for name, s in signals.items()
    }
    return cut_signals, Rollouts(rollouts.actions[part], rollouts.mask[part], {})


def evaluated(
    signals: dict[str, Signal],
    rollouts: Rollouts,
    cuts: tuple[int, ...] | None = None,
    objective: Objective = OBJECTIVE,
    index: torch.Tensor | None = None,
) -> Evaluation:
    """Measured in batches that end at `cuts`, of prompts that are equal if their index is."""
    running = RunningSums()
    index = torch.arange(len(rollouts.mask)) if index is None else index
    for first, last in pairwise(cuts or (0, len(rollouts.mask))):
        part = slice(first, last)
        running.add(prompt_sums(objective, *rows(signals, rollouts, part)), PromptGroups(index[part]))
    evaluation = running.evaluation(objective)
    running.clear()
    assert running.evaluation(objective) == Evaluation()
    return evaluation


@pytest.mark.parametrize("cuts", [(0, 5), (0, 1, 5), (0, 2, 2, 3, 5)])
def test_batches_add_up_to_the_whole(cuts: tuple[int, ...]) -> None:
    signals, rollouts = batch(5)
    whole = behavior_sums(OBJECTIVE, signals, rollouts)
    evaluation = evaluated(signals, rollouts, cuts)
    assert evaluation.metrics == behavior_metrics(OBJECTIVE, {name: value.item() for name, value in whole.items()})
    assert (evaluation.prompts, evaluation.answers) == (5, 20)
    assert evaluation.standard_errors == pytest.approx(evaluated(signals, rollouts).standard_errors, rel=1e-12)


class TestStandardErrors:
    def test_with_as_many_answers_to_each_they_are_of_the_prompts_means(self) -> None:
        signals, rollouts = batch(7)
        errors = evaluated(signals, rollouts).standard_errors
        goal, speed = (signals[name].value.double().mean(1) for name in ("goal", "speed"))
        lengths = rollouts.lengths.double().mean(1)
        slow = (signals["speed"].value < 2).double().mean(1)
        means = {
            "reward/goal": goal,
            "reward/speed": speed,
            "reward/mean": goal + 0.5 * speed,
            "rollout/length": lengths,
            "rate/slow": slow,
        }
        for tag, values in means.items():
            assert errors[tag] == pytest.approx((values.std() / math.sqrt(7)).item(), rel=1e-9), tag

    def test_where_opportunities_differ_by_loops(self) -> None:
        signals, rollouts = batch(7)
        evaluation = evaluated(signals, rollouts)
        polite = signals["polite"]
        counts = []
        for prompt in range(7):
            applies = [answer for answer in range(4) if polite.applicable[prompt, answer]]
            counts.append((sum(1 - polite.value[prompt, answer].item() for answer in applies), len(applies)))
        total = sum(opportunities for _, opportunities in counts)
        rate = sum(violations for violations, _ in counts) / total
        n = sum(opportunities > 0 for _, opportunities in counts)
        square = sum((violations - rate * opportunities) ** 2 for violations, opportunities in counts)
        expected = math.sqrt(n / (n - 1) * square) / total
        # That of the rate as it is shown, too, which is 1 minus this one.
        assert evaluation.metrics["rate/polite"] == pytest.approx(1 - rate)
        assert evaluation.standard_errors["rate/polite"] == pytest.approx(expected)
        assert evaluation.standard_errors["rate/lava"] == evaluation.standard_errors["rate/seen"] > 0

    def test_a_single_prompt_has_none(self) -> None:
        signals, rollouts = batch(1)
        evaluation = evaluated(signals, rollouts)
        assert evaluation.standard_errors == {} and "rate/lava" in evaluation.metrics
        signals, rollouts = batch(3)
        only = torch.zeros(3, 4, dtype=torch.bool)
        only[1, 2] = True
        signals["polite"].applicable = only
        evaluation = evaluated(signals, rollouts)
        assert "rate/polite" in evaluation.metrics and "rate/polite" not in evaluation.standard_errors
        assert evaluation.standard_errors["rate/lava"] > 0


def test_sums_by_loops() -> None:
    signals, rollouts = batch(3)
    sums = {name: value.item() for name, value in behavior_sums(OBJECTIVE, signals, rollouts).items()}
    answers = [(b, g) for b in range(3) for g in range(4)]
    polite = signals["polite"]
    applies = [at for at in answers if polite.applicable[at]]
    assert 0 < len(applies) < 12
    lava_count = sum(signals["lava"].count[at].item() for at in answers)
    steps = sum(int(rollouts.mask[at].sum()) for at in answers)
    families = ("observed", "violating", "clean", "violations squared", "violations by opportunities")
    families = (*families, "opportunities squared", "most", "most of observed")
    kinds = ("violating", "clean")
    families = (*families, *(f"{of} of {kind}" for of in ("opportunities", "opportunities squared") for kind in kinds))
    assert {name: value for name, value in sums.items() if name.partition("/")[0] not in families} == {
        "answers": 12,
        "steps": steps,
        "violations/lava": lava_count,
        "opportunities/lava": steps,
        "violations/polite": sum(1 - polite.value[at].item() for at in applies),
        "opportunities/polite": len(applies),
        "violations/slow": sum(signals["speed"].value[at].item() < 2 for at in answers),
        "opportunities/slow": 12,
        "violations/seen": lava_count,
        "opportunities/seen": steps,
        "sum/goal": sum(signals["goal"].value[at].item() for at in answers),
        "count/goal": 12,
        "sum/speed": sum(signals["speed"].value[at].item() for at in answers),
        "count/speed": 12,
        "inapplicable/goal": 0,
        "inapplicable/speed": 0,
        "inapplicable/lava": 0,
        "inapplicable/polite": 12 - len(applies),
    }


def test_moments_give_the_standard_errors_that_the_rows_give() -> None:
    signals, rollouts = batch(40)
    evaluation = evaluated(signals, rollouts)
    sums = {name: value.item() for name, value in behavior_sums(OBJECTIVE, signals, rollouts).items()}
    for rates in (evaluation.rates, clustered_rates(OBJECTIVE.constraints, sums)):
        assert rates.keys() == OBJECTIVE.constraints.keys()
        for name, rate in rates.items():
            shown = OBJECTIVE.constraints[name].bound.shown(rate.rate)
            assert shown == pytest.approx(evaluation.metrics[f"rate/{name}"], rel=1e-12)
            assert rate.standard_error == pytest.approx(evaluation.standard_errors[f"rate/{name}"], rel=1e-9)


def test_agreeing_prompts_have_rates_without_standard_error() -> None:
    values = {"violations": 2.0, "opportunities": 3.0, "most": 5.0}
    rows = {f"{kind}/x": torch.full((3,), value).double() for kind, value in values.items()}
    added = {name: row.sum() for name, row in rows.items()} | moments(["x"], rows)
    sums = {name: value.item() for name, value in added.items()}
    assert clustered_rates(["x"], sums)["x"] == ClusteredRate(pytest.approx(2 / 3), None, 3, 9.0, 3, 3, 3.0, 3.0, 5.0)
    none = {name: value * 0 for name, value in sums.items()}
    assert clustered_rates(["x"], none) == {}


PROCESS = """\
import dataclasses, importlib.util, json, sys, torch
import torch.distributed as dist
path, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
spec = importlib.util.spec_from_file_location("here", path)
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
signals, rollouts = here.batch(5)
share = slice(*[(0, 2), (2, 2), (2, 5)][rank])
for index in (torch.arange(5), torch.tensor([0, 1, 1, 2, 0])):
    evaluation = here.evaluated(*here.rows(signals, rollouts, share), index=index[share])
    print(json.dumps(dataclasses.asdict(evaluation)))
"""


@pytest.mark.slow
def test_three_processes_of_which_one_has_no_prompts(tmp_path: Path) -> None:
    """Each gets the evaluation of all prompts, standard errors included."""
    command = [sys.executable, "-c", PROCESS, __file__, str(tmp_path / "store")]
    running = [subprocess.Popen([*command, str(rank), "3"], stdout=subprocess.PIPE) for rank in range(3)]
    printed = [process.communicate(timeout=120)[0].splitlines() for process in running]
    for number, index in enumerate((None, torch.tensor([0, 1, 1, 2, 0]))):
        expected = evaluated(*batch(5), index=index)
        assert (expected.prompts, expected.answers) == (5 if index is None else 3, 20)
        for lines in printed:
            evaluation = json.loads(lines[number])
            assert evaluation["metrics"] == pytest.approx(expected.metrics, rel=1e-12)
            assert evaluation["standard_errors"] == pytest.approx(expected.standard_errors, rel=1e-12)
            for count in ("prompts", "answers", "repeats"):
                assert evaluation[count] == getattr(expected, count)
            for name, rate in evaluation["rates"].items():
                assert ClusteredRate(**rate).bounds(0.05) == pytest.approx(expected.rates[name].bounds(0.05), rel=1e-9)


def test_repeats_of_a_prompt_are_one_prompt_with_more_answers() -> None:
    signals, rollouts = batch(6)
    apart = torch.tensor([0, 3, 1, 4, 2, 5])  # pairs of equal prompts, in different batches

    def paired(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else torch.cat([tensor[:3], tensor[3:]], 1)

    together = {n: Signal(*map(paired, (s.value, s.count, s.opportunities, s.applicable))) for n, s in signals.items()}
    expected = evaluated(together, Rollouts(paired(rollouts.actions), paired(rollouts.mask), {}))
    mixed = {n: Signal(*(None if t is None else t[apart] for t in (s.value, s.count, s.opportunities, s.applicable)))
             for n, s in signals.items()}  # fmt: skip
    repeated = evaluated(mixed, rows(signals, rollouts, apart)[1], (0, 2, 5, 6), index=apart % 3)
    assert (repeated.prompts, repeated.answers, repeated.repeats) == (3, 24, 3)
    assert repeated.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert repeated.standard_errors == pytest.approx(expected.standard_errors, rel=1e-12)
    for name, rate in repeated.rates.items():
        assert rate.bounds(0.05) == pytest.approx(expected.rates[name].bounds(0.05), rel=1e-9)


class TestMetrics:
    def test_inapplicable_rewards_are_not_averaged_in(self) -> None:
        objective = Objective("x")
        signal = Signal(tensor([1.0, NAN, 0, 1]), applicable=torch.tensor([[True, False, True, True]]))
        mask = torch.ones(1, 4, 2, dtype=torch.bool)
        never = replace(signal, applicable=torch.zeros(1, 4, dtype=torch.bool))
        for measured, rewards, share in ((signal, {"reward/mean": 2 / 3}, 0.25), (never, {}, 1)):
            sums = behavior_sums(objective, {"x": measured}, Rollouts(mask.long(), mask, {}))
            metrics = behavior_metrics(objective, {name: value.item() for name, value in sums.items()})
            assert metrics == {**rewards, "rollout/length": 2, "inapplicable/x": share}


def test_no_other_choice_of_answers_comes_nearer_to_the_threshold() -> None:
    """Every choice of one answer for each of 4 prompts."""
    generator = torch.Generator().manual_seed(0)
    objective = Objective("goal", {"lava": Constraint(at_most=0.2), "polite": Constraint(at_least=0.9)})
    for _ in range(20):
        steps = torch.randint(1, 9, (4, 3), generator=generator).float()
        lava = (torch.rand(4, 3, generator=generator) * steps).round()
        polite = (torch.rand(4, 3, generator=generator) < 0.4).float()
        best = RunningSums()
        signals = {"lava": Signal(lava, count=lava, opportunities=steps), "polite": Signal(polite)}
        for half in (slice(0, 3), slice(3, 4)):
            sums = best_sums(objective, {n: s.mapped(lambda t, half=half: t[half]) for n, s in signals.items()})
            best.add(sums, PromptGroups(torch.arange(4)[half]))
        rates = best.rates(objective.means)
        choices = list(itertools.product(range(3), repeat=4))
        excess = [sum(float(lava[row, one] - 0.2 * steps[row, one]) for row, one in enumerate(c)) for c in choices]
        found = rates["lava"]
        assert (found.rate - 0.2) * found.opportunities == pytest.approx(min(excess), abs=1e-5)
        assert rates["polite"].rate == pytest.approx(1 - polite.amax(-1).mean().item())
        meets = ((lava <= 0.2 * steps + 1e-6) & (polite == 1)).any(-1).float().mean().item()
        assert rates[EVERY].rate == pytest.approx(1 - meets)
