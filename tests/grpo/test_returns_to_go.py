"""Returns-to-go without a critic, against the paper's advantages and the policy gradient.

`tests/test_against_loops.py` has their definition.
"""

import itertools

import pytest
import torch

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.grpo.returns_to_go import ReturnsToGo, step_deviations
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components

WEIGHTS = torch.tensor([0.6, 0.4], dtype=torch.float64)


def rollouts(mask):
    return Rollouts(torch.zeros(mask.shape, dtype=torch.int64), mask, {})


def of_steps(rewards):
    """Components of signals by step ``[J, B, G, T]``."""
    return Components(rewards.sum(-1), torch.ones(rewards.shape[:3], dtype=torch.bool), dict(enumerate(rewards)))


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
