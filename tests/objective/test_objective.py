"""What an objective means: signals into components, counts and thresholds."""

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.objective.objective import Constraint, Objective, ObjectiveError, over_prompts


class TestThresholds:
    @settings(max_examples=200, deadline=None, derandomize=True)
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
    def test_of_an_indicator(self) -> None:
        signal = Signal(torch.tensor([[1.0, 0, 1]]))
        unwanted, wanted = Constraint(at_most=0.1), Constraint(at_least=0.9)
        assert [x.tolist() for x in unwanted.violations(signal)] == [[[1, 0, 1]], [[1, 1, 1]]]
        assert [x.tolist() for x in wanted.violations(signal)] == [[[0, 1, 0]], [[1, 1, 1]]]
        assert unwanted.component(signal).tolist() == [[-1, 0, -1]]
        assert wanted.component(signal).tolist() == [[1, 0, 1]]

    def test_of_counts(self) -> None:
        """Steps in violation among all steps: the rate counts, the advantage sees the value."""
        signal = Signal(torch.tensor([[7.0, 0.5]]), torch.tensor([[3.0, 0]]), torch.tensor([[10.0, 4]]))
        assert [x.tolist() for x in Constraint(at_most=0.1).violations(signal)] == [[[3, 0]], [[10, 4]]]
        assert [x.tolist() for x in Constraint(at_least=0.9).violations(signal)] == [[[7, 4]], [[10, 4]]]
        assert Constraint(at_most=0.1).component(signal).tolist() == [[-7, -0.5]]
        assert Constraint(at_least=0.9).component(signal).tolist() == [[7, 0.5]]

    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_of_a_number(self, word: str) -> None:
        """`violated_*` says what is a violation, whichever way the rate is bounded."""
        signal = Signal(torch.tensor([[1.0, 2, 3]]), applicable=torch.tensor([[True, True, False]]))
        above, below = Constraint(**{word: 0.5}, violated_above=1.0), Constraint(**{word: 0.5}, violated_below=2.0)
        assert [x.tolist() for x in above.violations(signal)] == [[[0, 1, 0]], [[1, 1, 0]]]
        assert [x.tolist() for x in below.violations(signal)] == [[[1, 0, 0]], [[1, 1, 0]]]
        assert above.component(signal)[0, :2].tolist() == [0, -1]
        assert below.component(signal)[0, :2].tolist() == [-1, 0]

    def test_inapplicable_entries_count_nowhere(self) -> None:
        signal = Signal(torch.tensor([[1.0, math.nan, 0]]), applicable=torch.tensor([[True, False, True]]))
        for constraint, count in ((Constraint(at_most=0.1), 1), (Constraint(at_least=0.9), 1)):
            violations, opportunities = constraint.violations(signal)
            assert (violations.sum(), opportunities.sum()) == (count, 2)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16, torch.float64])
    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_indicators_of_any_type(self, word: str, dtype: torch.dtype) -> None:
        indicator = torch.tensor([[1, 0, 1, 1]])
        constraint = Constraint(**{word: 0.5})
        expected, got = Signal(indicator.float()), Signal(indicator.to(dtype))
        for a, b in zip(constraint.violations(expected), constraint.violations(got), strict=True):
            assert a.tolist() == b.tolist()
        objective = Objective("x", {"c": Constraint(**{word: 0.5}, signal="x")})
        values = [objective.components({"x": signal}).values for signal in (expected, got)]
        assert values[0].tolist() == values[1].tolist() and values[1].is_floating_point()


class TestSignalsByStep:
    """A behavior of steps, two answers of 3 and 2 steps; after the end the task left garbage."""

    MASK = torch.tensor([[[True, True, True], [True, True, False]]])
    OBJECTIVE = Objective("goal", {"lava": Constraint(at_most=0.1), "speed": Constraint(at_most=0.1, violated_below=2)})

    def signals(self, **options: torch.Tensor) -> dict[str, Signal]:
        signals = {
            "goal": Signal(torch.tensor([[1.0, 0]]), **options),
            "lava": Signal(torch.tensor([[[1.0, 0, 1], [0, 1, math.nan]]]), **options),
            "speed": Signal(torch.tensor([[[1.0, 2, 3], [4, 5, 0]]]), **options),
        }
        return {name: signal.within(self.MASK) for name, signal in signals.items()}

    def test_rates_pool_the_steps(self) -> None:
        violations, opportunities = self.OBJECTIVE.violations(self.signals())
        assert (violations.tolist(), opportunities.tolist()) == ([3, 1], [5, 5])

    def test_components_are_sums_and_keep_their_steps(self) -> None:
        components = self.OBJECTIVE.components(self.signals())
        assert components.values.flatten(1).tolist() == [
            pytest.approx(x, abs=1e-6) for x in ([1, 0], [-1.7, -0.8], [-0.7, 0.2])
        ]
        goal, lava, speed = components.by_step(self.MASK)[:, 0].tolist()
        assert goal == [[0, 0, 1], [0, 0, 0]]
        assert lava == [pytest.approx(x, abs=1e-6) for x in ([-0.9, 0.1, -0.9], [0.1, -0.9, 0])]
        assert speed == [pytest.approx(x, abs=1e-6) for x in ([-0.9, 0.1, 0.1], [0.1, 0.1, 0])]

    def test_an_inapplicable_answer_counts_in_no_step(self) -> None:
        signals = self.signals(applicable=torch.tensor([[False, True]]))
        violations, opportunities = self.OBJECTIVE.violations(signals)
        assert (violations.tolist(), opportunities.tolist()) == ([1, 0], [2, 2])
        assert self.OBJECTIVE.components(signals).by_step(self.MASK)[:, 0, 0].eq(0).all()

    def test_counts_of_answers(self) -> None:
        """The advantage sees the steps, the rate is of answers."""
        signal = Signal(torch.tensor([[[1.0, 0, 1], [0, 0, 0]]]), count=torch.tensor([[1.0, 0]])).within(self.MASK)
        assert [x.tolist() for x in Constraint(at_most=0.1).violations(signal)] == [[[1, 0]], [[1, 1]]]

    def test_the_excess_of_each_step(self) -> None:
        excess = Constraint(at_most=0.25, cost="excess").component(self.signals()["lava"])
        assert excess.tolist() == [[[-0.75, 0.25, -0.75], [0.25, -0.75, 0]]]


class TestCost:
    """Two answers with steps: one violation in 10 steps, and 2 in 80; the threshold is .05 of the steps."""

    signal = Signal(torch.tensor([[1.0, 2.0]]), opportunities=torch.tensor([[10.0, 80.0]]))

    @pytest.mark.parametrize("signal", [signal, replace(signal, count=signal.value)])
    def test_a_sum_prefers_the_answer_with_the_higher_rate(self, signal: Signal) -> None:
        """A sum is the cost by name, or because the task gives it beside a count."""
        constraint = Constraint(at_most=0.05, cost="signal" if signal.count is None else None)
        wrong, right = constraint.component(signal)[0].tolist()
        assert wrong > right

    def test_the_excess_is_the_default_of_a_rate_over_steps(self) -> None:
        default, excess = (Constraint(at_most=0.05, cost=cost).component(self.signal) for cost in (None, "excess"))
        assert default.equal(excess)

    def test_the_excess_prefers_the_answer_that_meets_the_threshold(self) -> None:
        wrong, right = Constraint(at_most=0.05, cost="excess").component(self.signal)[0].tolist()
        assert (wrong, right) == pytest.approx((-0.5, 2.0))

    def test_the_excess_of_a_wanted_behavior(self) -> None:
        wrong, right = Constraint(at_least=0.05, cost="excess").component(self.signal)[0].tolist()
        # Violations are the 9 and 78 other steps, of which .95 may be.
        assert (wrong, right) == pytest.approx((0.5, -2.0))

    @pytest.mark.parametrize("word", ["at_most", "at_least"])
    def test_the_excess_of_an_indicator_is_its_value_up_to_a_constant(self, word: str) -> None:
        indicator = Signal(torch.tensor([[1.0, 0.0, 0.0]]))
        plain, excess = (Constraint(**{word: 0.2}, cost=cost).component(indicator) for cost in ("signal", "excess"))
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


class TestObjective:
    OBJECTIVE = Objective(
        {"goal": 1.0, "speed": 0.5},
        {
            "lava": Constraint(at_most=0.01),
            "seen": Constraint(role="monitor", signal="battery"),
            "charged": Constraint(at_least=0.9, signal="full"),
            "bounded": Constraint(at_most=0.2, role="monitor", signal="lava"),
        },
    )

    @property
    def signals(self) -> dict[str, Signal]:
        def indicator(*values: float) -> torch.Tensor:
            return torch.tensor([values])

        return {
            "goal": Signal(indicator(1.0, 0, 0)),
            "speed": Signal(indicator(3.0, 4, 5)),
            "lava": Signal(indicator(0.0, 1, 0)),
            "battery": Signal(indicator(1.0, 1, 0)),
            "full": Signal(indicator(1.0, 0, 0), applicable=torch.tensor([[True, True, False]])),
        }

    def test_components(self) -> None:
        components = self.OBJECTIVE.components(self.signals)
        assert components.values.tolist() == [[[1, 0, 0]], [[3, 4, 5]], [[0, -1, 0]], [[1, 0, 0]]]
        assert components.applicable.tolist() == [*[[[True] * 3]] * 3, [[True, True, False]]]
        assert components.values.dtype == torch.float32

    def test_component_weights(self) -> None:
        weights = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        got = self.OBJECTIVE.component_weights(weights)
        assert got.dtype == torch.float64 and got.tolist() == [0.5, 0.25, 0.3, 0.2]
        single = Objective({"goal": 3.0}, {"lava": Constraint(at_most=0.1)})
        assert single.component_weights(weights[:2]).tolist() == [1.5, 0.3]

    def test_violations_of_all_and_of_some(self) -> None:
        objective, signals = self.OBJECTIVE, self.signals
        violations, opportunities = objective.violations(signals)
        assert violations.tolist() == [1, 2, 1, 1] and opportunities.tolist() == [3, 3, 2, 3]
        assert violations.dtype == opportunities.dtype == torch.float64
        constrained = over_prompts(objective.counts(signals), objective.constrained)
        assert [x.tolist() for x in constrained] == [[1, 1], [3, 2]]

    def test_counts_are_summed_exactly(self) -> None:
        """In float32, 2^24 + 1 is 2^24."""
        signal = Signal(torch.full((2, 4097), 4097.0), opportunities=torch.full((2, 4097), 8191.0))
        objective = Objective("x", {"c": Constraint(at_most=0.5, signal="x")})
        violations, opportunities = objective.violations({"x": signal})
        assert violations.item() == 2 * 4097 * 4097 and opportunities.item() == 2 * 4097 * 8191
