"""What advantages promise to the last bit: no signal where nothing varies, whatever the scale, dtype and process.

`tests/test_against_loops.py` has the formulas.
"""

import math

import pytest
import torch

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import GDPO, LeaveOneOut, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components
from tests.fake_world import in_processes

ESTIMATORS = [ScalarizedAdvantages("group"), ScalarizedRewards(), LeaveOneOut(), GDPO(), ScalarizedAdvantages()]
by_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
NO_STEPS = torch.zeros(0)
ROLLOUTS = Rollouts(NO_STEPS, NO_STEPS, {})
"""Trajectory-level estimators read nothing of the steps."""


def components(values, applicable=None, dtype=torch.float64) -> Components:
    values = torch.as_tensor(values, dtype=dtype)
    if applicable is None:
        applicable = torch.ones_like(values, dtype=torch.bool)
    return Components(values, torch.as_tensor(applicable))


def z_of(*group: float, dtype=torch.float32) -> torch.Tensor:
    return group_statistics(components([[group]], dtype=dtype)).standardized[0, 0]


class TestStandardization:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("one", range(8))
    def test_seven_against_one_is_the_root_of_seven(self, one: int, dtype: torch.dtype) -> None:
        # To the last bit or two: an eps added to the standard deviation would be seen.
        z = z_of(*(float(i == one) for i in range(8)), dtype=dtype)
        expected = [math.sqrt(7) if i == one else -1 / math.sqrt(7) for i in range(8)]
        assert z.tolist() == pytest.approx(expected, rel=torch.finfo(dtype).eps, abs=0)
        others = torch.cat([z[:one], z[one + 1 :]])
        assert torch.all(others == others[0])

    @pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.7, 1e8, 1e-8, 3e38, 1e-45])
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 64])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equal_values_are_exactly_zero(self, value: float, size: int, dtype: torch.dtype) -> None:
        data = components([[[value] * size]], dtype=dtype)
        statistics = group_statistics(data)
        assert not statistics.informative.any()
        assert statistics.std.eq(0).all() and statistics.deviation.eq(0).all() and statistics.standardized.eq(0).all()
        for estimator in ESTIMATORS:
            assert estimator(ROLLOUTS, group_statistics(data), torch.ones(1)).eq(0).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("value", "residue"), [(0.3, 0.1 + 0.2), (1 / 3, 1 - 2 / 3), (1e8, 1e8 * (1 + 2e-16)), (-0.3, -(0.1 + 0.2))]
    )
    def test_rounding_residue_is_no_signal(self, value: float, residue: float, dtype: torch.dtype) -> None:
        assert dtype == torch.float32 or value != residue, "Expected a residue to test."
        data = components([[[value, value, residue, value]]], dtype=dtype)
        assert group_statistics(data).standardized.eq(0).all()
        for estimator in ESTIMATORS:
            assert estimator(ROLLOUTS, group_statistics(data), torch.ones(1)).eq(0).all()

    @pytest.mark.parametrize(("offset", "dtype"), [(5e5, torch.float32), (1e14, torch.float64)])
    def test_an_indicator_with_an_offset_that_its_dtype_holds(self, offset: float, dtype: torch.dtype) -> None:
        """Rounding is relative to the dtype: what is residue in float32 is a signal in float64."""
        z = z_of(offset + 1, offset, offset, offset, dtype=dtype)
        assert z.tolist() == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3])

    @pytest.mark.parametrize("estimator", ESTIMATORS[:2] + ESTIMATORS[3:], ids=lambda e: type(e).__name__)
    def test_values_whose_squares_overflow(self, estimator) -> None:
        data = components([[[3e38, -3e38, 3e38, -3e38], [1, 0, 0, 0]]], dtype=torch.float32)
        advantages = estimator(ROLLOUTS, group_statistics(data), torch.ones(1))
        assert advantages.isfinite().all() and advantages.dtype == torch.float32
        assert (advantages[0, 0] > 0) and (advantages[0, 1] < 0) and (advantages[1, 0] > 0)


class TestScalarizedRewards:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_sum_that_is_constant_has_no_advantage(self, dtype: torch.dtype) -> None:
        # The reward comes with its cost: R = C = 1 against R = C = 0. Both vary, S does not.
        r = torch.tensor([[1.0, 0, 0, 1]])
        data = components(torch.stack([r, -r]), dtype=dtype)
        copy = components(torch.stack([0.1 * r, -0.3 * r]), dtype=dtype)  # whose rounding leaves a residue
        for given, weights in ((data, (0.5, 0.5)), (data, (0.1, 0.1)), (data, (1 / 3, 1 / 3)), (copy, (0.75, 0.25))):
            statistics, weights = group_statistics(given), torch.tensor(weights, dtype=dtype)
            assert ScalarizedRewards()(ROLLOUTS, statistics, weights).eq(0).all()
            assert ScalarizedRewards().effective_weights(statistics, weights).eq(0).all()

    @pytest.mark.parametrize(("rest", "varies"), [(1e-4, True), (1e-5, True), (1e-8, False)])
    def test_a_sum_that_nearly_cancels(self, rest: float, varies: bool) -> None:
        """S keeps `rest` of its terms: far above rounding it is a signal."""
        r = torch.tensor([[1.0, 0, 0, 1]], dtype=torch.float64)
        data = components(torch.stack([(1 + rest) * r, -r]))
        advantages = ScalarizedRewards()(ROLLOUTS, group_statistics(data), torch.tensor([0.5, 0.5]))
        assert advantages.flatten().tolist() == pytest.approx([1, -1, -1, 1] if varies else [0] * 4)

    @pytest.mark.parametrize("weight", [1e-25, 1e-10, 5e-4, 0.3, 1.0, 40.0])
    def test_a_single_component_is_plain_grpo_whatever_its_weight(self, weight: float) -> None:
        data = components([[[1.0, 0, 0, 3], [2, 2, 2, 2]]], dtype=torch.float32)
        weights = torch.tensor([weight], dtype=torch.float64)
        got = ScalarizedRewards()(ROLLOUTS, group_statistics(data), weights)
        assert torch.allclose(got, group_statistics(data).standardized[0].float(), rtol=1e-6)
        effective = ScalarizedRewards().effective_weights(group_statistics(data), weights)
        assert effective.flatten().tolist() == pytest.approx([1, 0], rel=1e-6)


class TestLeaveOneOut:
    def test_the_policy_gradient_is_unbiased(self) -> None:
        """Over all groups that a policy of two actions can draw; against the group's mean it is (G - 1) / G of that."""
        p, size = 0.3, 3
        means = {}
        for estimator in (LeaveOneOut(), None):
            total = 0.0
            for group in range(2**size):
                actions = torch.tensor([float(group >> i & 1) for i in range(size)], dtype=torch.float64)
                probability = math.prod(p if a else 1 - p for a in actions.tolist())
                score = actions - p  # the gradient of the log-probability by the logit
                data = components(actions[None, None])
                advantages = actions - actions.mean()
                if estimator:
                    advantages = estimator(ROLLOUTS, group_statistics(data), torch.ones(1))
                total += probability * (advantages * score).mean().item()
            means[type(estimator)] = total
        gradient = p * (1 - p)  # of the expected reward, p
        assert means[LeaveOneOut] == pytest.approx(gradient)
        assert means[type(None)] == pytest.approx(gradient * (size - 1) / size)


class TestGDPO:
    def test_moments_are_those_of_all_processes(self, monkeypatch) -> None:
        """Each of two processes has its half of the whole batch's advantages."""
        values = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values[:, 2:] *= 7
        values[0, 3, 0] = 100.0
        # A mean that isn't 0 on each process: answers of one group apply in part.
        applicable = torch.ones_like(values, dtype=torch.bool)
        applicable[0, 0, 0] = applicable[0, 2, 0] = False

        def advantages(rows):
            data = Components(values[:, rows], applicable[:, rows])
            return GDPO()(ROLLOUTS, group_statistics(data), torch.ones(1, dtype=torch.float64))

        halves, _ = in_processes(monkeypatch, lambda rank: advantages(slice(2 * rank, 2 * rank + 2)))
        torch.testing.assert_close(torch.cat(halves), advantages(slice(None)), rtol=1e-9, atol=1e-9)


@by_estimator
class TestEveryEstimator:
    @pytest.mark.parametrize("constant", [5.0, -0.5, 1024.0])
    def test_a_constant_added_to_an_indicator_changes_no_bit(self, estimator, constant: float) -> None:
        generator = torch.Generator().manual_seed(0)
        values = (torch.rand(3, 16, 8, generator=generator) < 0.3).float()
        weights = torch.tensor([0.6, 0.3, 0.1])
        moved = values.clone()
        moved[0] += constant
        statistics = [group_statistics(components(v, dtype=torch.float32)) for v in (values, moved)]
        assert torch.equal(*(estimator(ROLLOUTS, s, weights) for s in statistics))
        assert torch.equal(*(estimator.effective_weights(s, weights) for s in statistics))

    def test_gradients_of_the_weights_are_finite_where_groups_carry_no_signal(self, estimator) -> None:
        # One group varies, one doesn't, and in one S is constant though its components vary.
        r = [[1.0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]]
        c = [[0.0, -1, 0, 0], [0, 0, 0, 0], [-1, 0, -1, 0]]
        weights = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
        advantages = estimator(ROLLOUTS, group_statistics(components([r, c])), weights)
        (advantages * torch.arange(12.0).view(3, 4) ** 2).sum().backward()
        assert weights.grad.isfinite().all() and weights.grad.ne(0).all()
        weights.grad = None
        dead = estimator(ROLLOUTS, group_statistics(components([r[1:2], c[1:2]])), weights)
        dead.sum().backward()
        assert torch.equal(weights.grad, torch.zeros(2, dtype=torch.float64))
