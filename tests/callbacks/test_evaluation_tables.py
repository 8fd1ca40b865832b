"""The objective on the screen: what is measured of which prompts, against which thresholds."""

import math

import pytest
import torch
from rich.console import Console
from scipy.stats import binomtest

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import EvaluationTable
from lightning_cgrpo.callbacks.evaluation_tables import objective_table
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate
from tests.grids import grid_module
from tests.quiet import quiet_trainer


def rates(objective, prompts, answers, **shown):
    """Rates whose prompts are as different as independent answers of single prompts."""
    violated = {name: objective.constraints[name].bound.shown(rate) for name, rate in shown.items()}
    errors = {name: math.sqrt(rate * (1 - rate) / prompts) for name, rate in violated.items()}
    return {name: ClusteredRate(rate, errors[name] or None, prompts, answers) for name, rate in violated.items()}


def shown(objective, evaluations, width=80):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(objective_table(objective, evaluations, "Test"))
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


def test_the_layout():
    """A row per behavior, with the sets of prompts and the threshold side by side; intervals are of the prompts."""
    constraints = {
        "correctness": Constraint(at_least=0.75),
        "format": Constraint(at_least=0.99),
        "truncated": Constraint(at_most=0.01, role="monitor"),
        "rare": Constraint(at_most=0.5),
    }
    objective = Objective("length", constraints)
    measured = {"reward/mean": -0.2083, "rollout/length": 213.27}
    errors = {"reward/mean": 0.0021, "rollout/length": 2.2}
    train = rates(objective, 1319, 5276, correctness=0.7812, format=0.9931, truncated=0.0012)
    test = rates(objective, 500, 500, correctness=0.6923, format=1.0, truncated=0.03)
    both = {"train": Evaluation(measured, errors, 1319, 5276, train), "test": Evaluation(measured, {}, 500, 500, test)}
    lines = shown(objective, both, width=130)
    assert lines[0] == "Test" and set(lines[2]) == {"─"}
    assert [lines[1], *lines[3:]] == [
        "threshold train 1,319 x 4 test 500 x 1",
        "reward length -0.2083 ± 0.0021 -0.2083",
        "correctness >= 0.75 0.781 0.758-0.803 met 0.692 0.650-0.733 missed",
        "format >= 0.99 0.993 0.987-0.997 undecided 1.0000 0.9926-1.0000 met",
        "truncated <= 0.01 monitored 0.0012 0.0001-0.0050 met 0.030 0.017-0.049 missed",
        "rare <= 0.5 never observed never observed",
        "answer length 213.3 ± 2.2 213.3",
        "prompts x answers to each; ± standard error and 95 % intervals over prompts",
    ]
    # Clopper and Pearson's, because the answers to a prompt are equal here.
    low, high = binomtest(round(0.2188 * 1319), 1319).proportion_ci(0.95, method="exact")
    assert (1 - high, 1 - low) == pytest.approx((0.758, 0.803), abs=1e-3)


def test_repeats_of_a_prompt_are_counted_and_named():
    objective = Objective("goal", {"format": Constraint(at_least=0.5)})
    repeated = Evaluation({"reward/mean": 1.0}, {}, 549, 2264, rates(objective, 549, 2264, format=0.9), repeats=17)
    lines = shown(objective, {"follow-ups": repeated}, width=120)
    assert lines[1] == "threshold follow-ups 566 x 4"
    assert " ".join(lines[-2:]).endswith("; 17 follow-ups repeat, accompany or share a sample with a prompt")


def test_only_enforced_thresholds_are_alarming_and_names_are_no_markup():
    objective = Objective("[red]goal", {"[/b]": Constraint(at_most=0.5), "x": Constraint(at_most=0.5, role="monitor")})
    evaluation = Evaluation({}, {}, 100, 100, rates(objective, 100, 100, **{"[/b]": 0.7, "x": 0.7}))
    names, _, cells = objective_table(objective, {"test": evaluation}, "Test").columns
    assert [cell.plain for cell in names.cells] == ["reward [red]goal", "[/b]", "x", "answer length"]
    _, enforced, monitored, _ = cells.cells
    assert enforced.plain.endswith("missed") and [span.style for span in enforced.spans if span.style] == ["bold red"]
    assert monitored.plain.endswith("missed") and not any(span.style for span in monitored.spans)


def evaluate(data):
    module = grid_module({"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.05)}, 15, eval_group_size=2)
    trainer = quiet_trainer(EvaluationTable())
    trainer.test(module, data, verbose=False)
    return module, {tag: float(value) for tag, value in trainer.callback_metrics.items()}


class Both(GridworldDataModule):
    """With training layouts in the test."""

    def __init__(self, number, **arguments):
        super().__init__(**arguments)
        self.test_train_prompts = number


SMALL = {"test_prompts": 7, "train_prompts": 100, "eval_prompts": 3, "size": 5, "lava": 6}


def test_train_and_test_rates_side_by_side(capsys):
    """Under tags of their own; those of the test are what they are without, and those of training by hand."""
    _, alone = evaluate(GridworldDataModule(**SMALL))
    assert "train" not in capsys.readouterr().out
    module, both = evaluate(Both(5, **SMALL))
    of_test = {tag: value for tag, value in both.items() if tag.startswith("test/")}
    assert of_test == alone and {"test/rate/lava", "test/rate/battery", "test/reward/mean"} <= alone.keys()
    of_train = {tag.removeprefix("test_train/"): v for tag, v in both.items() if tag.startswith("test_train/")}
    assert {f"test/{tag}" for tag in of_train} == alone.keys() and len(both) == 2 * len(alone)

    data = GridworldDataModule(**SMALL)
    prompts = data.source("train").groups(torch.tensor([0, 20, 40, 60, 80]))
    rollouts = module.sample(prompts, 2, Stream.TEST, 1)
    assert of_train["rate/lava"] == pytest.approx((rollouts.info["lava"].sum() / rollouts.mask.sum()).item(), rel=1e-6)
    assert of_train["reward/mean"] == pytest.approx(rollouts.info["goal"].any(-1).float().mean().item(), rel=1e-6)

    assert (module.evaluations["test"].prompts, module.evaluations["test"].answers) == (7, 14)
    assert (module.evaluations["test_train"].prompts, module.evaluations["test_train"].answers) == (5, 10)
    text = " ".join(capsys.readouterr().out.split())
    assert "threshold train 5 x 2 test 7 x 2" in text and "± " in text
    for name in ("lava", "battery"):
        row = text[text.index(f" {name} <= ") :]
        assert row.index(f"{of_train[f'rate/{name}']:.3f}") <= row.index(f"{alone[f'test/rate/{name}']:.3f}")
