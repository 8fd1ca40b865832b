"""A declared look: targets by exact binomials and by simulated bets, chances, and refusals."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from benchmarks.populations import Clusters
from benchmarks.verdicts import DESIGNS
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages
from lightning_cgrpo.multipliers.dual import Dual
from lightning_cgrpo.objective.chance import Seen, chance_of, look_targets, shown_targets
from lightning_cgrpo.objective.constraint import ObjectiveError
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.look import Look, target_of
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.objective.verdicts import ratio
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate
from lightning_cgrpo.run.checkpoints.resumable import check_numbers

BOUNDS = {"a": Constraint(at_most=0.15), "b": Constraint(at_least=0.99), "c": Constraint(at_least=0.9)}
LOOK = Look(1_000, confidence=0.95, chance=0.9)


def whole(size: int = 1_000_000, **rates: float) -> Evaluation:
    """An evaluation of one answer to each prompt."""
    found = {}
    for name, rate in rates.items():
        error = (rate * (1 - rate) / size) ** 0.5
        found[name] = ClusteredRate(rate, error, size, size, most=1.0)
    return Evaluation({"reward/mean": 1.0}, {}, size, size, found)


def declared(objective: Objective, state: dict[str, Any] | None = None) -> Dual:
    """The dual of an objective, resumed from a state if there is one."""
    dual = Dual()
    dual.declare(objective)
    if state is not None:
        dual.load_state_dict(state)
    return dual


@pytest.mark.parametrize("constraints", [1, 3])
def test_a_policy_at_the_target_passes_the_exact_test_with_the_declared_chance(constraints: int) -> None:
    for threshold in (0.01, 0.15, 0.58, 0.95):  # up to more violations than the last power of 2 below 1,000
        target = target_of(threshold, LOOK, constraints)
        passing = [c for c in range(1_000) if binom.cdf(c, 1_000, threshold) <= 0.04 / constraints]
        assert binom.cdf(passing[-1], 1_000, target) ** constraints == pytest.approx(0.9)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_policy_at_the_target_passes_the_betting_test_about_as_often_as_declared(design: str) -> None:
    """Rates of steps and calls, and means, at 1,000 prompts: with a chance of 0.9, in 0.82 to 0.97 of 150 looks."""
    draw, _, rate, threshold, most = DESIGNS[design]
    generator = np.random.default_rng(0)
    violations, opportunities = draw(generator, 20_000, rate)
    found = violations.sum() / opportunities.sum()
    error = np.sqrt(((violations - found * opportunities) ** 2).mean()) / opportunities.mean()
    mean = design.startswith("mean")
    worth = 1.0 if mean else found * (1 - found) / error**2
    share = opportunities.mean() / most
    target = Seen(found, threshold, False, worth, 1e9, share, error if mean else None).target(LOOK, 1)
    looks = [ratio.p_value_met(*draw(generator, 1_000, target), most, threshold) <= 0.04 for _ in range(150)]
    assert 0.82 <= np.mean(looks) <= 0.97


def test_the_chance_of_a_policy_at_its_targets_is_the_declared_chance() -> None:
    targets = dict(zip("abc", look_targets(Objective("goal", BOUNDS, LOOK)).tolist(), strict=True))
    at_targets = chance_of(LOOK, BOUNDS, whole(**targets))
    # Holm's later steps need less evidence than its first.
    assert 0.88 < at_targets.whole < 0.97
    assert all(of == pytest.approx(0.9 ** (1 / 3), abs=0.02) for of in at_targets.each.values())
    assert list(at_targets.more) == [2_000, 5_000, 10_000] and min(at_targets.more.values()) > 0.99
    at_thresholds = chance_of(LOOK, BOUNDS, whole(a=0.15, b=0.01, c=0.1))
    assert at_thresholds.whole < 0.01 and max(at_thresholds.more.values()) < 0.01
    # A validation of few prompts leaves the chance uncertain, on both sides.
    assert 0.1 < chance_of(LOOK, BOUNDS, whole(300, **targets)).whole < 0.8
    assert chance_of(LOOK, BOUNDS, whole(a=0.1, b=0.001)).whole == 0, "never observed"


def test_targets_follow_what_a_validation_tells() -> None:
    """Half of the answers apply to `given`, steps count as their design effect, and means by their deviation."""
    constraints = {
        "some": Constraint(at_most=0.15, signal="a", given="b"),
        "steps": Constraint(at_most=0.15),
        "speed": Constraint(mean_at_least=4.0, range=[0, 10]),
    }
    objective = Objective("goal", constraints, LOOK)
    before = shown_targets(objective, None)
    assert before == {name: pytest.approx(target_of(0.15, LOOK, 3)) for name in ("some", "steps")}
    rates = {
        "some": ClusteredRate(0.1, 0.02, 500, 500.0, most=1.0),
        "steps": ClusteredRate(0.1, 0.02, 1_000, 10_000.0, most=40.0),
        "speed": ClusteredMean(-5.0, 0.05, 1_000, 1_000.0),
    }
    after = shown_targets(objective, Evaluation({}, {}, 1_000, 1_000, rates))
    assert after["some"] == pytest.approx(target_of(0.15, LOOK, 3, 500))
    assert after["steps"] < before["steps"], "0.02 is twice the error of independent answers"
    assert 4 + 4 * 0.05 < after["speed"] < 4 + 6 * 0.05, "four to six standard errors"
    # Of 32 alike answers to each prompt, one varies as the mean of them, and not 32 times as much.
    rates["speed"] = ClusteredMean(-5.0, 0.05, 1_000, 32_000.0)
    many = shown_targets(objective, Evaluation({}, {}, 1_000, 32_000, rates))["speed"]
    assert 4 < many < 4 + 6 * 5 / 1_000**0.5, "no values from 0 to 10 deviate by more than 5"


def test_training_aims_at_the_targets_from_yaml_python_and_trl() -> None:
    constraints = {"a": Constraint(at_most=0.15), "b": Constraint(at_most=0.15, aim=0.05)}
    constraints["late"] = Constraint(at_most=0.15, start=0.3, over=10)
    objective = Objective("goal", constraints, LOOK)
    target, dual = target_of(0.15, LOOK, 3), declared(objective)
    for targets in (dual.targets, ConstrainedAdvantages(objective).dual.targets):
        targets.enforce(0)
        assert targets.wanted.tolist() == pytest.approx([target, 0.05, 0.3])
        targets.enforce(10)
        assert targets.wanted.tolist() == pytest.approx([target, 0.05, target])
    dual.note_look(objective, whole(a=0.1, b=0.1, late=0.1))
    assert torch.equal(declared(objective, dual.state_dict()).targets.look, dual.targets.look)
    for changed in (
        replace(objective, look=replace(LOOK, prompts=5_000)),
        replace(objective, constraints=constraints | {"a": Constraint(at_most=0.1)}),
    ):
        look = declared(changed, dual.state_dict()).targets.look
        assert torch.equal(look, look_targets(changed)), "a look that was changed at the resume"
    text = {"reward": "goal", "constraints": {"a": {"at_most": 0.15}}, "look": {"prompts": 1_000, "chance": 0.8}}
    of_yaml = Objective.declared(text)
    assert of_yaml.look == Look(1_000, chance=0.8) and round(look_targets(of_yaml).item(), 3) == 0.121


def test_training_leaves_room_for_the_error_of_the_validation_that_chooses_the_policy() -> None:
    """One standard error of 400 validation answers inside the look's target; an aim is chosen with its margin."""
    objective = Objective("goal", {"a": Constraint(at_most=0.15), "b": Constraint(at_most=0.15, aim=0.1)}, LOOK)
    dual, validation = declared(objective), whole(400, a=0.1, b=0.1)
    dual.note_validation(validation.rates)
    dual.note_look(objective, validation)
    dual.targets.answers += 1e12
    dual.targets.enforce(0, margin=1.0)
    own, chosen = dual.targets.targets.tolist()
    assert own + (own * (1 - own) / 400) ** 0.5 == pytest.approx(target_of(0.15, LOOK, 2))
    assert chosen == pytest.approx(0.1, abs=1e-5)
    # A policy whose validation shows the target of training is certified with more than the declared chance.
    assert chance_of(LOOK, {"a": objective.constraints["a"]}, whole(400, a=own)).whole > LOOK.chance


def test_without_a_look_nothing_changes() -> None:
    objective = Objective("goal", BOUNDS)
    dual = declared(objective)
    dual.note_look(objective, whole(a=0.1, b=0.0, c=0.0))
    assert dual.targets.wanted.tolist() == pytest.approx([0.15, 0.01, 0.1]) and "look" not in dual.state_dict()
    assert repr(objective) == repr(replace(objective, look=LOOK)), "by which checkpoints know their objective"


@pytest.mark.parametrize(
    ("look", "problem"),
    [
        (3, "to be like {prompts: 1000"),
        ({"prompt": 3}, "prompts, confidence and chance, but got prompt"),
        ({"prompts": 0}, "prompts: of at least 1, but got 0"),
        ({"prompts": 2.5}, "prompts: of at least 1, but got 2.5"),
        ({"chance": 1.0}, "chance: from 0.5 to below 1, but got 1.0"),
        ({"confidence": True}, "confidence: from 0.5 to below 1, but got True"),
        ({"prompts": 20}, "can certify 'a' <= 0.15, but got 20, too few even without a violation"),
    ],
)
def test_refused(look: object, problem: str) -> None:
    constraints = {"a": {"at_most": 0.15}, "b": {"at_most": 0.15}}
    with pytest.raises(ObjectiveError, match=re.escape(problem)):
        Objective.declared({"reward": "goal", "constraints": constraints, "look": look})


def test_a_run_resumes_before_a_mean_has_a_target() -> None:
    """A checkpoint with a NaN would be refused, and a mean has no target before a validation."""
    objective = Objective("goal", {"speed": Constraint(mean_at_least=4.0, range=[0, 10]), "a": BOUNDS["a"]}, LOOK)
    dual = declared(objective)
    dual.enforce(0)
    check_numbers(dual.state_dict(), "LagrangianCallback", "last.ckpt")
    speed, rate = dual.targets.wanted.tolist()
    assert speed == -4 and rate < 0.15, "the threshold is the target of what has none"


def test_a_mean_needs_a_range_for_a_look() -> None:
    with pytest.raises(ObjectiveError, match=r"a range for the look at the mean 'speed'"):
        Objective("goal", {"speed": Constraint(mean_at_least=4.0)}, LOOK)


def test_short_answers_make_the_target_of_a_mean_over_steps_stricter() -> None:
    """The test of a sample bets a tenth as much where answers have 50 of 500 possible steps."""
    objective = Objective("goal", {"speed": Constraint(mean_at_most=0.3, range=[0, 1])}, LOOK)
    seen = {}
    for name, most in (("full", 50.0), ("short", 500.0)):
        rates = {"speed": ClusteredMean(0.28, 0.002, 1_000, 50_000.0, most=most)}
        evaluation = Evaluation({}, {}, 1_000, 1_000, rates, different=1_000)
        share = Seen.of("speed", objective.constraints["speed"], evaluation).share
        seen[name] = share, shown_targets(objective, evaluation)["speed"]
    assert seen["full"][0] == 1 and seen["short"][0] == pytest.approx(0.1)
    assert seen["short"][1] < seen["full"][1] - 0.005 < 0.3


def test_clusters_of_prompts_make_the_target_stricter() -> None:
    """1,000 prompts of 50 drives tell less than 1,000 independent ones; repeats of a prompt are no clusters."""
    objective = Objective("goal", {"a": Constraint(at_most=0.15)}, LOOK)
    rates = {"a": ClusteredRate(0.1, (0.09 / 150) ** 0.5, 50, 1_000.0, most=20.0)}
    drives = Evaluation({}, {}, 50, 1_000, rates, repeats=950, different=1_000)
    target = shown_targets(objective, drives)["a"]
    generator, passed = np.random.default_rng(0), 0
    design = Clusters(1_000, 20, 17 / 3 / 19)  # the correlation with which 1,000 answers tell as much as 150
    for _ in range(200):
        passed += ratio.p_value_met(*design.draw(generator, target), 20, 0.15) <= 0.04
    assert target < target_of(0.15, LOOK, 1) and 0.8 < passed / 200 < 0.98
    repeated = replace(whole(1_000, a=0.1), repeats=10, different=1_000, answers=1_010)
    assert Seen.of("a", objective.constraints["a"], repeated).single
