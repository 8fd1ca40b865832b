"""Estimators with a critic: what they combine, what they leave out, and what the critic learns."""

import dataclasses

import pytest
import torch
from torch import nn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.grpo.critic.critic_advantages import LagrangianGAE, ScalarizedGAE
from lightning_cgrpo.grpo.critic.mlp_critic import MLPCritic
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning, value_loss
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


class TestCombinations:
    def raw(self, estimator, rollouts, components):
        values = estimator.critic.network.net(rollouts.inputs["observations"]).movedim(-1, 0).detach()
        rewards = components.by_step(rollouts.mask)
        return generalized_advantages(rewards, values, rollouts.mask, 0.99, 0.95)

    def test_each_component_standardized_and_then_combined(self):
        rollouts = episodes()
        components, estimator = signals(rollouts), make(ScalarizedGAE, noise=0.3)
        raw = self.raw(estimator, rollouts, components)[:, rollouts.mask]
        expected = (WEIGHTS.float()[:, None] * (raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True)).sum(0)
        got = estimator(rollouts, group_statistics(components), WEIGHTS)
        torch.testing.assert_close(got[rollouts.mask], expected)
        assert got[~rollouts.mask].eq(0).all()

    def test_combined_and_the_sum_standardized(self):
        rollouts = episodes()
        components, estimator = signals(rollouts), make(LagrangianGAE, noise=0.3)
        raw = self.raw(estimator, rollouts, components)[:, rollouts.mask]
        total = 0.6 * raw[0] + 0.4 * raw[1]
        got = estimator(rollouts, group_statistics(components), WEIGHTS)
        torch.testing.assert_close(got[rollouts.mask], (total - total.mean()) / total.std())
        scaled = estimator(rollouts, group_statistics(components), 10 * WEIGHTS)
        torch.testing.assert_close(scaled, got)
        factors = estimator.effective_weights(group_statistics(components), WEIGHTS)
        torch.testing.assert_close(factors[:, 0], WEIGHTS.float() * raw.std(1) / total.std())

    @pytest.mark.parametrize("kind", ESTIMATORS)
    def test_an_inapplicable_component_adds_nothing(self, kind):
        """And teaches the critic nothing."""
        rollouts = episodes()
        components, estimator = signals(rollouts), make(kind, noise=0.3)
        applicable = components.applicable.clone()
        applicable[1] = False
        partly = Components(components.values, applicable, components.steps)
        torch.testing.assert_close(
            estimator(rollouts, group_statistics(partly), WEIGHTS),
            estimator(rollouts, group_statistics(components), torch.tensor([0.6, 0.0])) * 1.0,
        )
        estimator(rollouts, group_statistics(partly), WEIGHTS)
        head = estimator.critic.network.net[-1].weight[1].clone()
        estimator.learn(adam(estimator.critic.parameters()), 4, 0, 0)
        assert torch.equal(estimator.critic.network.net[-1].weight[1], head)


class TestTimeLimits:
    def rollouts(self):
        rollouts = episodes()
        last = rollouts.mask & (rollouts.mask.cumsum(-1) == rollouts.lengths[..., None])
        # Of a group, the first episode is truncated, the second ends at the limit, and the others end before.
        answers = torch.tensor([0, 1, 2, 3])[:, None]
        facts = {"truncated": last & (answers < 2), "terminated": last & (answers > 0)}
        reached = rollouts.inputs["observations"].roll(-1, 2)
        return dataclasses.replace(rollouts, info={**facts, "observation": reached})

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


class TestTheTrap:
    """A cost that nobody pays: its advantages are the critic's errors, and standardizing makes them as large as any."""

    def without_violations(self, rollouts):
        components = signals(rollouts)
        return of(components.values[0], torch.zeros(rollouts.mask.shape))

    @pytest.mark.parametrize("kind", ESTIMATORS)
    def test_a_component_without_violations_contributes_exactly_zero(self, kind):
        rollouts = episodes()
        components, estimator = self.without_violations(rollouts), make(kind, noise=1e-3)
        got = estimator(rollouts, group_statistics(components), WEIGHTS)
        assert torch.equal(got, estimator(rollouts, group_statistics(components), torch.tensor([0.6, 0.0])))
        estimator(rollouts, group_statistics(components), WEIGHTS)
        assert estimator.effective_weights(group_statistics(components), WEIGHTS)[1].eq(0).all()

    @pytest.mark.parametrize("kind", ESTIMATORS)
    def test_a_single_violation_counts(self, kind):
        rollouts = episodes()
        cost = torch.zeros(rollouts.mask.shape)
        cost[1, 2, 0] = -1
        components = of(torch.zeros(cost.shape[:2]), cost)
        got = make(kind)(rollouts, group_statistics(components), WEIGHTS)
        assert got[1, 2, 0] == got.min() < 0


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

    def test_the_clipped_loss(self):
        """Moved by 0.5, clipped to 0.2: the larger of both squared errors, as in PPO's public code."""
        ones = torch.ones(2, 1)
        targets = {"returns": torch.tensor([[1.0], [0.0]]), "values": torch.zeros(2, 1), "value_weights": 0.5 * ones}
        examples = Examples({}, ones[:, 0].long(), ones[:, 0].bool(), ones[:, 0].long(), targets=targets)
        values = torch.full((2, 1), 0.5)
        assert float(value_loss(values, examples, None)) == pytest.approx(0.5 * (0.5 * 0.25 + 0.5 * 0.25))
        assert float(value_loss(values, examples, 0.2)) == pytest.approx(0.5 * (0.5 * 0.64 + 0.5 * 0.25))

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
