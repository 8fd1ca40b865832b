"""Returns-to-go without a critic, against their definition, the paper's advantages, and the policy gradient."""

import itertools
import statistics

import pytest
import torch

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.grpo.returns_to_go import ReturnsToGo, step_deviations
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components

LENGTHS = torch.tensor([[5, 1, 3, 5], [4, 2, 0, 4]])
MASK = torch.arange(5) < LENGTHS[..., None]
WEIGHTS = torch.tensor([0.6, 0.4], dtype=torch.float64)


def rollouts(mask=MASK):
    return Rollouts(torch.zeros(mask.shape, dtype=torch.int64), mask, {})


def of_steps(rewards, applicable=None):
    """Components of signals by step ``[J, B, G, T]``."""
    every = torch.ones(rewards.shape[:3], dtype=torch.bool)
    return Components(rewards.sum(-1), every if applicable is None else applicable, dict(enumerate(rewards)))


def drawn(mask=MASK, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(2, *mask.shape, generator=draw, dtype=torch.float64) * mask


def by_definition(rewards, lengths, applicable, weights, gamma):
    """Advantages ``[G][T]`` of a group in plain Python, from rewards ``[J][G][T]``."""
    total = [[0.0] * len(rewards[0][0]) for _ in lengths]
    for component, applies, weight in zip(rewards, applicable, weights, strict=True):
        returns = [
            [sum(gamma ** (later - t) * row[later] for later in range(t, length)) for t in range(length)]
            for row, length in zip(component, lengths, strict=True)
        ]
        excess = {}
        for t in range(max(lengths)):
            there = [g for g, length in enumerate(lengths) if t < length and applies[g]]
            for g in there:
                excess[g, t] = returns[g][t] - statistics.fmean(returns[other][t] for other in there)
        std = (sum(value**2 for value in excess.values()) / max(len(excess), 1)) ** 0.5
        for (g, t), value in excess.items():
            total[g][t] += weight * value / std if std > 1e-12 else 0.0
    return total


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_equals_the_definition(gamma):
    rewards, applicable = drawn(), torch.ones(2, 2, 4, dtype=torch.bool)
    applicable[1, 0, 2] = applicable[1, 1] = False
    got = ReturnsToGo(gamma)(rollouts(), group_statistics(of_steps(rewards, applicable)), WEIGHTS)
    expected = [
        by_definition(rewards[:, b].tolist(), LENGTHS[b].tolist(), applicable[:, b].tolist(), WEIGHTS.tolist(), gamma)
        for b in range(2)
    ]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_signals_of_answers_of_equal_lengths_have_the_papers_advantages_at_every_step():
    mask = torch.ones(3, 4, 6, dtype=torch.bool)
    values = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    values[1, 0] = 0.7  # without variance
    components = Components(values, torch.ones(2, 3, 4, dtype=torch.bool))
    got = ReturnsToGo()(rollouts(mask), group_statistics(components), WEIGHTS)
    papers = ScalarizedAdvantages("group")(rollouts(mask), group_statistics(components), WEIGHTS)
    torch.testing.assert_close(got, papers[..., None].expand_as(got), rtol=0, atol=1e-6)


def test_equal_returns_contribute_exactly_zero():
    rewards = torch.zeros(2, 1, 2, 3)
    rewards[0, 0] = torch.tensor([[0.1, 0.7, 0.2], [0.1, 0.7, 0.2]])
    rewards[1, 0, 0, 0] = -1  # a violation
    got = ReturnsToGo()(rollouts(torch.ones(1, 2, 3, dtype=torch.bool)), group_statistics(of_steps(rewards)), WEIGHTS)
    assert got[0, :, 1:].eq(0).all() and got[0, 0, 0] < 0 < got[0, 1, 0]


class TestThePolicyGradient:
    """Three steps; action 1 has probability p, and moves on by one state. A step pays its state squared, 10 at first.

    All groups of two answers are enumerated, with their probabilities.
    """

    P, STEPS, G = 0.4, 3, 2

    def groups(self):
        """Probabilities ``[N]``, scores of steps and returns-to-go ``[N, G, T]``."""
        actions = torch.tensor(list(itertools.product((0.0, 1.0), repeat=self.STEPS)), dtype=torch.float64)
        probability = (actions * self.P + (1 - actions) * (1 - self.P)).prod(-1)
        rewards = (10 * actions[:, :1] + actions.cumsum(-1)) ** 2
        returns = rewards.flip(-1).cumsum(-1).flip(-1)
        pairs = torch.tensor(list(itertools.product(range(len(actions)), repeat=self.G)))
        return probability[pairs].prod(-1), (actions - self.P)[pairs], returns[pairs]

    def test_is_the_expectation_times_the_share_of_the_others(self):
        probability, scores, returns = self.groups()
        deviation, _ = step_deviations(returns[None], torch.ones(1, *returns.shape, dtype=torch.bool))
        gradients = (deviation[0] * scores).sum(-1).mean(-1)  # [N]
        exact = (probability * (returns[:, 0, 0] * scores[:, 0].sum(-1))).sum()  # of the sum, without a baseline
        assert float((probability * gradients).sum()) == pytest.approx((self.G - 1) / self.G * float(exact), rel=1e-12)
