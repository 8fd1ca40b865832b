"""What an objective means: thresholds, costs, and types of signals.

`tests/test_against_loops.py` has counts and components.
"""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError


class TestThresholds:
    @settings(max_examples=200, deadline=None)
    @given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, 10**n), st.just(n))))
    def test_at_least_turns_into_the_decimal_complement(self, drawn: tuple[int, int]) -> None:
        numerator, digits = drawn
        text = Decimal(numerator).scaleb(-digits)
        complement = float(Decimal(10**digits - numerator).scaleb(-digits))
        wanted = Constraint(at_least=float(text))
        assert wanted.bound.target == complement == Constraint(at_most=complement).bound.target
        # And back: the threshold is shown as the user gave it, and a rate right at it meets it.
        assert wanted.bound.threshold == float(text)
        assert wanted.bound.shown(complement) == pytest.approx(float(text), abs=1e-15)
        assert wanted.bound.met(wanted.bound.shown(complement))

    def test_ends_of_the_range(self) -> None:
        assert Constraint(at_least=0.99).bound.target == 0.01 != 1 - 0.99
        assert Constraint(at_least=1).bound.target == 0.0 and Constraint(at_least=0.0).bound.target == 1.0
        assert not Constraint(at_most=0.1).bound.met(10_001 / 100_000)

    def test_without_bound(self) -> None:
        monitored = Constraint(role="monitor")
        assert monitored.bound.threshold is None and monitored.bound.target == math.inf
        assert monitored.bound.met(0.0) and monitored.bound.met(1.0)

    @pytest.mark.parametrize("digits", [1, 2, 3])
    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_a_rate_at_the_bound_meets_it_also_in_float32(self, word: str, digits: int) -> None:
        total = 10**digits
        for count in range(total + 1):
            constraint = Constraint(**{word: count / total})
            violations = count if word == "at_most" else total - count
            shown = constraint.bound.shown(violations / total)
            # Lightning's callback_metrics are float32.
            assert constraint.bound.met(shown) and constraint.bound.met(torch.tensor(shown).item())


class TestViolations:
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float64])
    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_indicators_of_any_type(self, word: str, dtype: torch.dtype) -> None:
        indicator, constraint = torch.tensor([[1, 0, 1, 1]]), Constraint(**{word: 0.5}, signal="x")
        expected, got = Signal(indicator.float()), Signal(indicator.to(dtype))
        for a, b in zip(constraint.violations(expected), constraint.violations(got), strict=True):
            assert a.tolist() == b.tolist()
        objective = Objective("x", {"c": constraint})
        values = [objective.components({"x": signal}).values for signal in (expected, got)]
        assert values[0].tolist() == values[1].tolist() and values[1].is_floating_point()


def test_rounding_of_long_sums_tells_no_answers_apart() -> None:
    """Answers with equally many violations, at different steps, are equal."""
    steps = torch.zeros(200, 8, 500)
    places = torch.rand(200, 8, 500, generator=torch.Generator().manual_seed(0)).argsort(-1)[..., :26]
    signal = Signal(steps.scatter(-1, places, 1.0), opportunities=torch.ones_like(steps))
    objective = Objective("x", {"c": Constraint(at_most=0.05)})
    values = objective.components({"x": Signal(torch.zeros(200, 8)), "c": signal}).values[1]
    assert torch.equal(values, values[:1, :1].expand_as(values)) and float(values[0, 0]) != 0


def test_counts_of_answers_beside_values_of_steps() -> None:
    """The advantage sees the steps, the rate is of answers."""
    mask = torch.tensor([[[True, True, True], [True, True, False]]])
    signal = Signal(torch.tensor([[[1.0, 0, 1], [0, 0, 0]]]), count=torch.tensor([[1.0, 0]])).within(mask)
    assert [x.tolist() for x in Constraint(at_most=0.1).violations(signal)] == [[[1, 0]], [[1, 1]]]


class TestCost:
    """Two answers with steps: one violation in 10 steps, and 2 in 80; the threshold is .05 of the steps."""

    signal = Signal(torch.tensor([[1.0, 2.0]]), opportunities=torch.tensor([[10.0, 80.0]]))

    def test_the_excess_prefers_the_answer_that_meets_the_threshold_and_a_sum_the_other(self) -> None:
        """A sum is the cost where the task gives it beside a count."""
        constraint = Constraint(at_most=0.05)
        assert constraint.component(self.signal)[0].tolist() == pytest.approx((-0.5, 2.0))
        wrong, right = constraint.component(replace(self.signal, count=self.signal.value))[0].tolist()
        assert wrong > right

    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_the_excess_of_an_indicator_is_its_value_up_to_a_constant(self, word: str) -> None:
        indicator = Signal(torch.tensor([[1.0, 0.0, 0.0]]))
        counted = replace(indicator, opportunities=torch.ones(1, 3))
        plain, excess = (Constraint(**{word: 0.2}).component(signal) for signal in (indicator, counted))
        assert torch.allclose(excess - plain, (excess - plain)[:, :1].expand_as(plain))

    @pytest.mark.parametrize(
        "signal",
        [
            Signal(torch.tensor([[1.0, 0.5]])),
            Signal(torch.tensor([[1.0, -1.0]])),
            Signal(torch.tensor([[[-1.0, 1.0], [0, 0]]])).within(torch.ones(1, 2, 2, dtype=torch.bool)),
            Signal(torch.ones(1, 2), count=torch.tensor([[3.0, 1.0]]), opportunities=torch.tensor([[2.0, 2.0]])),
        ],
    )
    def test_an_indicator_is_0_or_1_and_a_rate_in_0_to_1(self, signal: Signal) -> None:
        def made(**options: Any) -> None:
            Objective("x", {"c": Constraint(**options, signal="x")}).made({"x": signal}, PromptGroups(torch.arange(1)))

        with pytest.raises(ObjectiveError, match="constraint 'c' to be 0 or 1"):
            made(at_most=0.1)
        made(mean_at_most=0.1)


def test_component_weights() -> None:
    constraints = {
        "lava": Constraint(at_most=0.01),
        "seen": Constraint(role="monitor", signal="battery"),
        "drift": Constraint(mean_at_most=0.1, signal="kl"),
        "charged": Constraint(at_least=0.9, signal="full"),
    }
    objective = Objective({"goal": 1.0, "speed": 0.5}, constraints)
    weights = torch.tensor([0.5, 0.3, 0.1, 0.2], dtype=torch.float64)
    got = objective.component_weights(weights)
    assert got.dtype == torch.float64 and got.tolist() == [0.5, 0.25, 0.3, 0.2]
    single = Objective({"goal": 3.0}, {"lava": Constraint(at_most=0.1)})
    assert single.component_weights(weights[:2]).tolist() == [1.5, 0.3]


def test_counts_are_summed_exactly() -> None:
    """In float32, 2^24 + 1 is 2^24."""
    signal = Signal(torch.full((2, 4097), 4097.0), opportunities=torch.full((2, 4097), 8191.0))
    objective = Objective("x", {"c": Constraint(at_most=0.5, signal="x")})
    violations, opportunities = objective.violations({"x": signal})
    assert violations.item() == 2 * 4097 * 4097 and opportunities.item() == 2 * 4097 * 8191
