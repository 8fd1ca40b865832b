"""A rate among the answers for which another signal holds, and limits in a column of the prompts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta

from benchmarks.conditions import Conditional
from benchmarks.duals import train
from lightning_cgrpo.callbacks.evaluation_tables import objective_table
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.multipliers import DampedAscent
from lightning_cgrpo.objective.evaluation import RunningSums
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.measurement import prompt_sums
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError
from lightning_cgrpo.objective.subsets import check_columns, columns_read
from lightning_cgrpo.objective.verdicts.verdict import verdicts
from lightning_cgrpo.run.certificate import _constraint_counts

LONG = Constraint(signal="tokens", violated_above=20, at_most=0.25, given="right")
PROMPTS = PromptGroups(torch.arange(2), {"budget": [5, "30"], "language": ["en", "de"]})


def signals(**more: Signal) -> dict[str, Signal]:
    """Of the right answers, one of three is long; of the others, all."""
    right = Signal(torch.tensor([[1.0, 1, 0, 0], [1, 0, 0, 0]]))
    tokens = Signal(torch.tensor([[10.0, 30, 30, 30], [20, 30, 30, 30]]))
    return {"right": right, "tokens": tokens, **more}


def counts(constraint: Constraint, **more: Signal) -> list[list[float]]:
    """Violations and opportunities by prompt."""
    objective = Objective("right", {"long": constraint})
    return objective.counts(objective.made(signals(**more), PROMPTS))["long"].tolist()


BUDGET = {"column": "budget"}
BY_STEP = Signal(torch.full((2, 4, 2), 5.0), opportunities=torch.ones(2, 4, 2))
UNKNOWN = Signal(torch.ones(2, 4), applicable=torch.tensor([[True] + 3 * [False], 4 * [False]]))
COUNTS = {
    "answers for which the signal holds": (LONG, {}, [[1, 0], [2, 1]]),
    "within a subset": (replace(LONG, where={"language": "en"}), {}, [[1, 0], [2, 0]]),
    "a mean": (Constraint(signal="tokens", mean_at_most=25, given="right"), {}, [[40, 20], [2, 1]]),
    "a condition that does not apply": (LONG, {"right": UNKNOWN}, [[0, 0], [1, 0]]),
    # The first prompt's budget is 5, the second's 30.
    "above a column": (Constraint(signal="tokens", violated_above=BUDGET, at_most=0.1), {}, [[4, 0], [4, 4]]),
    "below a column": (Constraint(signal="tokens", violated_below=BUDGET, at_most=0.1), {}, [[0, 1], [4, 4]]),
    "steps": (Constraint(signal="speed", violated_below=BUDGET, at_most=0.1), {"speed": BY_STEP}, [[0, 8], [8, 8]]),
}


class TestCounts:
    @pytest.mark.parametrize(("constraint", "more", "expected"), COUNTS.values(), ids=COUNTS)
    def test_counts(self, constraint: Constraint, more: dict[str, Signal], expected: list[list[float]]) -> None:
        assert counts(constraint, **more) == expected

    def test_a_faulty_condition_holds_for_no_answer(self) -> None:
        objective = Objective("tokens", {"long": LONG})
        right = signals()["right"].value.clone()
        right[0, 1] = torch.nan
        made, faults = isolate_faults(objective.made(signals(right=Signal(right)), PROMPTS))
        assert objective.counts(made)["long"].tolist() == [[0, 0], [1, 1]] and faults["right"].tolist() == [1, 0]


class TestAdvantage:
    def test_the_component_is_the_excess_over_the_batchs_rate_and_every_answer_is_compared(self) -> None:
        """Right and brief is better than wrong, and wrong is better than right and long; one of three right is long."""
        objective = Objective("right", {"long": LONG})
        components = objective.components(objective.made(signals(), PROMPTS))
        third = pytest.approx(1 / 3)
        assert components.values[1].flatten().tolist() == [third, pytest.approx(-2 / 3), 0, 0, third, 0, 0, 0]
        assert components.applicable.all()

    def test_the_gradient_is_that_of_the_rate_among_the_right(self) -> None:
        """Enumerated: the advantage's expectation is the derivative of P(long | right) times P(right)."""
        logits = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
        right, long = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
        probs = logits.softmax(0)
        rate = (probs * right * long).sum() / (probs * right).sum()
        # A batch in which each arm is as frequent as its probability, to the thousandth.
        counts = (1000 * probs.detach()).round().long()
        arms = torch.arange(4).repeat_interleave(counts)[None]
        measured = {"right": Signal(right[arms]), "tokens": Signal(40 * long[arms])}
        objective = Objective("right", {"long": LONG})
        value = objective.components(objective.made(measured, PromptGroups(torch.arange(1)))).values[1]
        log_probs = torch.log_softmax(logits, 0)[arms]
        (expected,) = torch.autograd.grad((value * log_probs).sum() / value.numel(), logits, retain_graph=True)
        (exact,) = torch.autograd.grad(-rate * (probs * right).sum().detach(), logits)
        assert expected.tolist() == pytest.approx(exact.tolist(), abs=1e-3)
        assert abs(value.sum().item()) < 1e-3, "on the whole, the condition is neither learned nor unlearned"

    def test_answers_outside_the_subset_are_not_compared(self) -> None:
        objective = Objective("right", {"long": replace(LONG, where={"language": "en"})})
        components = objective.components(objective.made(signals(), PROMPTS))
        assert components.applicable[1].tolist() == [4 * [True], 4 * [False]]

    def test_training_finds_the_constrained_optimum(self) -> None:
        """A bandit of three arms for each of two prompts; a linear program knows the optimum."""
        right = np.array([[0.3, 0.6, 0.9], [0.2, 0.5, 0.6]])
        long = np.array([[0.05, 0.3, 0.7], [0.02, 0.1, 0.6]])
        problem = Conditional(right, long[None], (0.25,), updates=300, prompts=16, lengths=right, rewarded=True)
        policy = train(problem, DampedAscent(), seed=0).mean(0)
        rate = (policy * right * long).sum() / (policy * right).sum()
        assert rate < 0.26
        _, optimum, _ = problem.bounds()
        assert (policy * right).sum() / 2 > 0.95 * optimum


class TestMeasurement:
    OBJECTIVE = Objective("right", {"long": LONG})

    def sums(self) -> RunningSums:
        rollouts = Rollouts(torch.zeros(2, 4, 3, dtype=torch.int64), torch.ones(2, 4, 3, dtype=torch.bool), {})
        made, faults = isolate_faults(self.OBJECTIVE.made(signals(), PROMPTS))
        running = RunningSums()
        running.add(prompt_sums(self.OBJECTIVE, made, rollouts, faults, longest=80), PROMPTS)
        return running

    def test_the_table_names_the_condition(self) -> None:
        evaluation = self.sums().evaluation(self.OBJECTIVE)
        table = objective_table(self.OBJECTIVE, {"test": evaluation}, "Test")
        (row,) = (n for n, cell in enumerate(table.columns[0].cells) if str(cell) == "long")
        assert str([*table.columns[1].cells][row]) == "<= 0.25 given right"
        assert evaluation.metrics["rate/long"] == pytest.approx(1 / 3)

    def test_the_certificate_is_exact_given_the_number_of_right_answers(self) -> None:
        """Clopper and Pearson's bounds for one violation in three opportunities, whatever the number of prompts."""
        every = {name: Signal(signal.value.view(8, 1)) for name, signal in signals().items()}
        made, faults = isolate_faults(self.OBJECTIVE.made(every, PromptGroups(torch.arange(8))))
        assert made["tokens[given right]"].of_whole_answers
        rollouts = Rollouts(torch.zeros(8, 1, 3, dtype=torch.int64), torch.ones(8, 1, 3, dtype=torch.bool), {})
        rows = prompt_sums(self.OBJECTIVE, made, rollouts, faults, longest=80)
        found = _constraint_counts(self.OBJECTIVE, "long", rows, 80, True)
        assert found.single and found.totals == (1, 3)
        verdict = verdicts({"long": found}, 0.95)["long"]
        assert verdict.upper == pytest.approx(beta.ppf(0.95, 2, 2))
        assert verdict.lower == pytest.approx(beta.ppf(0.05, 1, 3))


class TestRefusals:
    @pytest.mark.parametrize(
        ("right", "words"),
        [
            (BY_STEP, "given a signal of whole answers, but got 'right', of steps"),
            (Signal(2 * torch.ones(2, 4)), "'right', given: to constraint 'long', to be 0 or 1, but got 2"),
        ],
    )
    def test_conditions(self, right: Signal, words: str) -> None:
        with pytest.raises(ObjectiveError, match=words):
            counts(LONG, right=right)

    def test_columns_of_limits(self) -> None:
        constraint = Constraint(signal="tokens", violated_above=BUDGET, at_most=0.1)
        assert columns_read(constraint) == ["budget"]

        def check(budget: object) -> None:
            source = type("Source", (), {"rows": [{"budget": 5}, {"budget": budget}]})
            check_columns({"long": constraint}, lambda split: source)

        check("7")
        with pytest.raises(ObjectiveError, match="limits in column 'budget' to be numbers, but got 'few'"):
            check("few")
        with pytest.raises(ObjectiveError, match="but got None"):
            check(None)
