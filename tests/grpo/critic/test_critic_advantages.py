"""Estimators with a critic: factors, time limits, and what the critic learns.

`tests/test_against_loops.py` has the advantages, and `tests/test_reference_update.py` clipping and the schedule.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.critic.critic_advantages import LagrangianGAE, ScalarizedGAE
from lightning_cgrpo.grpo.critic.mlp_critic import MLPCritic
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from lightning_cgrpo.grpo.gae import generalized_advantages
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components

ESTIMATORS = [ScalarizedGAE, LagrangianGAE]
STATES = 4


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def episodes(prompts=3, group=4, steps=6, seed=0):
    """Rollouts through one-hot states, of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    states = torch.randint(STATES, (prompts, group, steps), generator=draw)
    lengths = torch.randint(1, steps + 1, (prompts, group, 1), generator=draw)
    mask = torch.arange(steps) < lengths
    return Rollouts(torch.zeros_like(states), mask, {"observations": nn.functional.one_hot(states, STATES).float()})


def signals(rollouts, seed=1):
    """A reward of answers, and a cost of steps."""
    draw = torch.Generator().manual_seed(seed)
    reward = torch.rand(rollouts.mask.shape[:2], generator=draw)
    cost = -(torch.rand(rollouts.mask.shape, generator=draw) < 0.3).float() * rollouts.mask
    return of(reward, cost)


def of(reward, cost):
    return Components(torch.stack([reward, cost.sum(-1)]), torch.ones(2, *reward.shape, dtype=torch.bool), {1: cost})


def make(kind, noise=0.0, **options):
    """An estimator whose critic errs at random by `noise`."""
    estimator = kind(MLPCritic(STATES, hidden=()), adam, **options)
    estimator.critic.load(2)
    torch.manual_seed(0)
    nn.init.normal_(estimator.critic.network.net[-1].weight, std=noise)
    return estimator


WEIGHTS = torch.tensor([0.6, 0.4], dtype=torch.float64)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_effective_weights_are_factors_of_standardized_components(kind):
    """The components' weights; of a standardized sum, in shares of its deviation; 0 without a violation."""
    rollouts = episodes()
    components, estimator = signals(rollouts), make(kind, noise=0.3)
    estimator(rollouts, group_statistics(components), WEIGHTS)
    factors = estimator.effective_weights(group_statistics(components), WEIGHTS)[:, 0]
    expected = WEIGHTS.float()
    if kind is LagrangianGAE:
        values = estimator.critic.network.net(rollouts.inputs["observations"]).movedim(-1, 0).detach()
        rewards = components.by_step(rollouts.mask)
        raw = generalized_advantages(rewards, values, rollouts.mask, 0.99, 0.95)[:, rollouts.mask]
        expected = expected * raw.std(1) / (expected @ raw).std()
    torch.testing.assert_close(factors, expected)
    clean = group_statistics(of(components.values[0], torch.zeros(rollouts.mask.shape)))
    estimator(rollouts, clean, WEIGHTS)
    assert estimator.effective_weights(clean, WEIGHTS)[1].eq(0).all()
    slight, estimator = of(1 + 1e-4 * components.values[0], components.steps[1]), make(kind, gamma=1.0)
    estimator(rollouts, group_statistics(slight), WEIGHTS)
    assert estimator.effective_weights(group_statistics(slight), WEIGHTS).ne(0).all(), "twelve answers differ a little"


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_inapplicable_component_teaches_the_critic_nothing(kind):
    rollouts = episodes()
    components, estimator = signals(rollouts), make(kind, noise=0.3)
    applicable = components.applicable.clone()
    applicable[1] = False
    estimator(rollouts, group_statistics(replace(components, applicable=applicable)), WEIGHTS)
    before = estimator.critic.network.net[-1].weight.clone()
    estimator.learn(adam(estimator.critic.parameters()), 4, 0, 0)
    assert (estimator.critic.network.net[-1].weight == before).all(1).tolist() == [False, True]


class TestTimeLimits:
    def rollouts(self):
        rollouts = episodes()
        last = rollouts.mask & (rollouts.mask.cumsum(-1) == rollouts.lengths[..., None])
        # Of a group, the first episode is truncated, the second ends at the limit, and the others end before.
        answers = torch.tensor([0, 1, 2, 3])[:, None]
        facts = {"truncated": last & (answers < 2), "terminated": last & (answers > 0)}
        reached = rollouts.inputs["observations"].roll(-1, 2)
        return replace(rollouts, info={**facts, "observation": reached})

    def test_a_truncated_episode_goes_on_in_components_by_step(self):
        """The signal of whole answers is paid when the episode is over."""
        rollouts = self.rollouts()
        components = signals(rollouts)
        targets = {}
        for bootstraps in (False, True):
            estimator = make(ScalarizedGAE, noise=0.3, gae_lambda=1.0, bootstraps=bootstraps)
            estimator(rollouts, group_statistics(components), WEIGHTS)
            targets[bootstraps] = estimator._examples.targets["returns"]
        values = estimator.critic.network.net(rollouts.info["observation"]).detach()  # [B, G, T, J]
        more = torch.zeros_like(values)
        for prompt, length in enumerate(rollouts.lengths[:, 0].tolist()):
            for step in range(length):
                more[prompt, 0, step, 1] = 0.99 ** (length - step) * values[prompt, 0, length - 1, 1]
        torch.testing.assert_close(targets[True] - targets[False], more[rollouts.mask], rtol=0, atol=1e-6)

    def test_an_environment_without_limits_is_refused(self):
        rollouts = episodes()
        with pytest.raises(UserError, match="bootstraps"):
            make(LagrangianGAE, bootstraps=True)(rollouts, group_statistics(signals(rollouts)), WEIGHTS)


class TestTheCritic:
    def test_first_predicts_zero(self):
        critic = MLPCritic(STATES, hidden=(8,))
        critic.load(3)
        rollouts = episodes()
        assert critic(critic.network.examples(rollouts)).eq(0).all()
        weights = critic.network.net[0].weight
        critic.load(3)
        assert critic.network.net[0].weight is weights

    def test_heads_learn_the_tabular_solution(self):
        """With one-hot states and lambda 1, each head becomes the mean return by state."""
        rollouts = episodes(prompts=8)
        components = signals(rollouts)
        learning = ValueLearning(epochs=80, micro_batch_size=40)
        estimator = make(ScalarizedGAE, gamma=0.9, gae_lambda=1.0, learning=learning)
        for rate in (0.2, 0.02, 0.002):
            estimator(rollouts, group_statistics(components), WEIGHTS)
            optimizer = torch.optim.Adam(estimator.critic.parameters(), lr=rate)
            estimator.learn(optimizer, 4, 0, 0)
        rewards = components.by_step(rollouts.mask)
        returns = generalized_advantages(rewards, torch.zeros_like(rewards), rollouts.mask, 0.9, 1.0)
        states = rollouts.inputs["observations"].argmax(-1)
        table = torch.stack([returns[:, rollouts.mask & (states == s)].mean(-1) for s in range(STATES)], 1)  # [J, S]
        head = estimator.critic.network.net[-1]
        learned = (head.weight + head.bias[:, None]).detach()
        torch.testing.assert_close(learned, table, rtol=0, atol=2e-3)

    def test_explained_variance(self):
        """0 without a critic, and that of the state's share with the tabular solution."""
        rollouts = episodes(prompts=8)
        components = signals(rollouts)
        estimator = make(ScalarizedGAE, gae_lambda=1.0, learning=ValueLearning(epochs=500))
        optimizer = adam(estimator.critic.parameters())
        metrics = []
        for _ in range(2):
            estimator(rollouts, group_statistics(components), WEIGHTS)
            estimator.learn(optimizer, 4, 0, 0)
            metrics.append(estimator.metrics(["reward", "lava"], torch.ones(2)))
        assert metrics[0]["critic/explained_variance/lava"] == pytest.approx(0, abs=1e-6)
        assert 0.01 < metrics[1]["critic/explained_variance/lava"] < 0.5
        assert metrics[1]["critic/loss"] < metrics[0]["critic/loss"]

    def test_a_gradient_that_is_not_finite_moves_nothing_and_is_counted(self):
        rollouts = episodes()
        components, estimator = signals(rollouts), make(ScalarizedGAE, noise=0.1)
        estimator(rollouts, group_statistics(components), WEIGHTS)
        estimator._examples.targets["returns"][0] = torch.inf
        before = estimator.critic.network.net[-1].weight.clone()
        with pytest.warns(UserWarning, match="gradient is not finite; its optimizer step is skipped"):
            estimator.learn(adam(estimator.critic.parameters()), 4, 0, 0)
        assert torch.equal(estimator.critic.network.net[-1].weight, before)
        assert estimator.metrics(["reward", "lava"], torch.ones(2))["critic/skipped_steps"] == 1
        estimator(rollouts, group_statistics(components), WEIGHTS)
        estimator.learn(adam(estimator.critic.parameters()), 4, 0, 1)
        assert "critic/skipped_steps" not in estimator.metrics(["reward", "lava"], torch.ones(2))
