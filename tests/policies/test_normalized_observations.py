"""Normalized observations: moments of all steps, the function that they make, and when they change."""

from functools import partial

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import nn

from lightning_cgrpo import (
    CategoricalMLP,
    EnvironmentSampler,
    Gymnasium,
    GymnasiumTask,
    MLPCritic,
    NormalizedObservations,
    Objective,
    ScalarizedGAE,
)
from lightning_cgrpo.datamodules import SeedDataModule
from tests.grids import grid_module
from tests.quiet import quiet_trainer

SIZE = 3


def drawn(seed):
    """Observations ``[B, G, T, size]`` far from 0, the last always the same, and a mask of their steps."""
    draw = torch.Generator().manual_seed(seed)
    observations = 50 + torch.randn(2, 4, 7, SIZE, generator=draw) * torch.tensor([0.1, 20.0, 0.0])
    return observations, torch.arange(7) < torch.randint(0, 8, (2, 4, 1), generator=draw)


def test_moments_are_those_of_all_steps_and_of_stable_baselines():
    layer, peer, every = NormalizedObservations(SIZE), RunningMeanStd(epsilon=0, shape=(SIZE,)), []
    for seed in range(4):
        observations, mask = drawn(seed)
        every.append(observations[mask].double())
        layer.learn(observations, mask)
        peer.update(every[-1].numpy())
    steps = torch.cat(every)
    assert layer.count == len(steps)
    torch.testing.assert_close(layer.mean, steps.mean(0), rtol=1e-13, atol=0)
    torch.testing.assert_close(layer.squares / layer.count, steps.var(0, correction=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(layer.mean, peer.mean, rtol=1e-12)
    np.testing.assert_allclose(layer.squares / layer.count, peer.var, rtol=1e-9, atol=1e-9)
    layer.learn(observations[:0], mask[:0])  # a process without prompts
    assert layer.count == len(steps)


def test_the_function_is_that_of_a_scaled_first_layer():
    """In sampling and in training, after moments were learned; before, observations are only limited to 10."""
    torch.manual_seed(0)
    policy = CategoricalMLP(SIZE, 4, hidden=(8,), normalize=True)
    layer = policy.net[0]
    observations, mask = drawn(0)
    plain = nn.Sequential(*policy.net[1:])
    assert torch.equal(policy.net(observations), plain(observations.clamp(-10, 10)))
    layer.learn(observations, mask)
    observations = observations[mask]
    std = observations.double().std(0, correction=0)
    std[2] = 1  # does not vary
    mean = observations.double().mean(0)
    scaled = plain(((observations.double() - mean) / std).float())
    torch.testing.assert_close(policy.net(observations), scaled, rtol=0, atol=1e-4)
    assert torch.equal(policy.actor()(observations), policy.net(observations))


def test_moments_of_policy_and_critic_are_those_of_earlier_updates():
    critic = MLPCritic(4, hidden=(8,), normalize=True)
    policy, adam = CategoricalMLP(4, 2, hidden=(8,), normalize=True), partial(torch.optim.Adam, lr=1e-2)
    sampler, estimator = EnvironmentSampler(Gymnasium("CartPole-v1", max_steps=10)), ScalarizedGAE(critic, adam)
    parts = {"sampler": sampler, "task": GymnasiumTask(), "objective": Objective("reward"), "estimator": estimator}
    module = grid_module(policy=policy, **parts, seed=0)
    sampled, means, sample = [], [], module.sample

    def kept(*arguments):
        rollouts = sample(*arguments)
        means.append(module.policy.net[0].mean.clone())
        sampled.append(rollouts.inputs["observations"][rollouts.mask])
        # As in the training pass of this update.
        examples = module.policy.examples(rollouts)
        log_probs = module.policy(examples).log_probs
        torch.testing.assert_close(log_probs, rollouts.log_probs[rollouts.mask], rtol=0, atol=1e-5)
        return rollouts

    module.sample = kept
    quiet_trainer(max_steps=3, limit_val_batches=0).fit(module, SeedDataModule(prompts_per_update=2))
    assert means[0].eq(0).all()
    for update in (1, 2):
        torch.testing.assert_close(means[update], torch.cat(sampled[:update]).double().mean(0), rtol=0, atol=1e-12)
    assert torch.equal(critic.network.net[0].squares, module.policy.net[0].squares)
