"""One whole update of PPO by stable-baselines3, from the same weights and rollouts, to the precision of float64.

Conventions that differ, and how the test makes them equal:

- Stable-baselines3 adds 1e-8 to the standard deviation of advantages, which rewards of a million make negligible. Both
  standard deviations are sample standard deviations. Stable-baselines3 standardizes each minibatch, this package the
  whole batch; there is one minibatch.
- Stable-baselines3 adds gamma V to the reward of a step that a time limit truncates, where V is the value of the
  observation reached, as `bootstraps: true` here. By default, an episode ends with value 0. For the default, the test
  hands over truncated episodes as ended.
- Stable-baselines3 clips the norm of both networks' gradient together, and this package each network's. Clipped value
  losses differ too: stable-baselines3 takes the clipped error, this package the larger error. The test clips neither.
"""

from itertools import chain

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from lightning_cgrpo import (
    CategoricalMLP,
    ConstrainedGRPO,
    EnvironmentSampler,
    Gymnasium,
    GymnasiumTask,
    LagrangianGAE,
    MLPCritic,
    Objective,
    Optimization,
)
from lightning_cgrpo.datamodules import SeedDataModule
from lightning_cgrpo.grpo.critic import critic_advantages
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from tests.memory import Memory
from tests.quiet import quiet_trainer

SCALE, HIDDEN, EPOCHS = 1e6, (16, 16), 4
GAMMA, GAE_LAMBDA, CLIP, ENTROPY, RATE = 0.97, 0.9, 0.1, 0.01, 0.01


class Double(FlattenExtractor):
    def forward(self, observations):
        return super().forward(observations.double())


def adam(gradients):
    """Makes Adam, and keeps the gradient of each step in a list."""

    def make(parameters):
        optimizer = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
        optimizer.register_step_pre_hook(lambda own, *_: gradients.append(flat(p.grad for p in trained(own))))
        return optimizer

    return make


def trained(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def layers(*modules):
    """Weights of the linear layers of modules, in order."""
    found = (layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear))
    return list(chain.from_iterable((layer.weight, layer.bias) for layer in found))


def ours(monkeypatch, bootstraps):
    """The module after its update, its weights before, and all that the update computed."""
    torch.manual_seed(0)
    gradients, critic_gradients, examples = [], [], []
    scaled = {"gymnasium.wrappers.TransformReward": {"func": lambda reward: SCALE * reward}}
    critic = MLPCritic(4, hidden=HIDDEN)
    module = ConstrainedGRPO(
        CategoricalMLP(4, 2, hidden=HIDDEN),
        EnvironmentSampler(Gymnasium("CartPole-v1", max_steps=30, wrappers=[scaled])),
        GymnasiumTask(),
        Objective("reward"),
        optimizer=adam(gradients),
        optimization=Optimization(
            epochs=EPOCHS, clip_low=CLIP, entropy_weight=ENTROPY, aggregation="token_mean", max_grad_norm=None
        ),
        estimator=LagrangianGAE(
            critic,
            adam(critic_gradients),
            gamma=GAMMA,
            gae_lambda=GAE_LAMBDA,
            bootstraps=bootstraps,
            learning=ValueLearning(epochs=EPOCHS),
        ),
        group_size=4,
        seed=0,
    )
    critic.load(1)
    nn.init.normal_(critic.network.net[-1].weight, std=SCALE)
    before = [p.detach().double().clone() for p in layers(module.policy, critic)]
    learn_values = critic_advantages.learn_values
    monkeypatch.setattr(
        critic_advantages, "learn_values", lambda *given: (examples.append(given[1]), learn_values(*given))[1]
    )
    keep = Memory()
    quiet_trainer(keep, precision="64-true", max_steps=1).fit(module, SeedDataModule(prompts_per_update=6))
    steps = [torch.cat(pair) for pair in zip(gradients, critic_gradients, strict=True)]
    return module, before, keep, examples[0].targets, steps


def theirs(before, rollouts, rewards, bootstraps):
    """Stable-baselines3's PPO after an update on the episodes, one after the other, and the gradients of its steps."""
    mask = rollouts.mask
    steps = int(mask.sum())
    networks = {"net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)}, "activation_fn": nn.ReLU}
    # The coefficient of values, because there is half the squared error here.
    ppo = PPO(
        "MlpPolicy", "CartPole-v1", n_steps=steps, batch_size=steps, n_epochs=EPOCHS, learning_rate=RATE, gamma=GAMMA,
        gae_lambda=GAE_LAMBDA, clip_range=CLIP, ent_coef=ENTROPY, vf_coef=0.5, max_grad_norm=float("inf"), device="cpu",
        policy_kwargs=networks | {"features_extractor_class": Double},
    )  # fmt: skip
    ppo.set_logger(Logger(folder=None, output_formats=[]))
    policy = ppo.policy.double()
    weights = peers_layers(policy)
    with torch.no_grad():
        for parameter, value in zip(weights, before, strict=True):
            parameter.copy_(value)
        observations = rollouts.inputs["observations"][mask]
        actions = rollouts.actions[mask]
        values, log_probs, _ = policy.evaluate_actions(observations, actions)
        if bootstraps:  # as `OnPolicyAlgorithm.collect_rollouts`
            limited = mask & rollouts.info["truncated"] & ~rollouts.info["terminated"]
            rewards = rewards.clone()
            rewards[limited] += GAMMA * policy.predict_values(rollouts.info["observation"][limited]).flatten()
    gradients = []
    policy.optimizer.register_step_pre_hook(lambda *_: gradients.append(flat(p.grad for p in weights)))
    buffer = ppo.rollout_buffer
    for name in ("observations", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"):
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))
    starts = torch.zeros_like(mask)
    starts[..., 0] = True
    given = [part.numpy() for part in (observations, actions, rewards[mask], starts[mask])]
    for row in zip(*given, values, log_probs, strict=True):
        buffer.add(*row)
    buffer.compute_returns_and_advantage(torch.zeros(1), np.ones(1))
    ppo.train()
    return ppo, gradients


def peers_layers(policy):
    return layers(policy.mlp_extractor.policy_net, policy.action_net, policy.mlp_extractor.value_net, policy.value_net)


@pytest.mark.parametrize("bootstraps", [False, True])
def test_one_update_equals_stable_baselines(bootstraps, monkeypatch):
    module, before, keep, targets, gradients = ours(monkeypatch, bootstraps)
    [outputs], metrics = keep.outputs, module.latest_metrics
    rollouts = outputs["rollouts"]
    terminated, truncated = (rollouts.info[name].any(-1) for name in ("terminated", "truncated"))
    assert terminated.any() and truncated.any(), "episodes of several lengths, ended and truncated"
    ppo, their_gradients = theirs(before, rollouts, rollouts.info["reward"], bootstraps)
    buffer, logged = ppo.rollout_buffer, ppo.logger.name_to_value

    def equal(found, expected):
        expected = torch.as_tensor(expected).flatten()
        size = float(expected.abs().max())
        assert found.dtype == expected.dtype == torch.float64
        torch.testing.assert_close(found.flatten() / size, expected / size, rtol=0, atol=1e-12)

    raw = torch.from_numpy(buffer.advantages).flatten()
    equal(targets["values"], buffer.values)
    equal(targets["returns"], buffer.returns)
    equal(outputs["advantages"][rollouts.mask], (raw - raw.mean()) / (raw.std() + 1e-8))
    assert metrics["policy/loss"] == pytest.approx(
        logged["train/policy_gradient_loss"] + ENTROPY * logged["train/entropy_loss"], rel=1e-11
    )
    assert metrics["policy/entropy"] == pytest.approx(-logged["train/entropy_loss"], rel=1e-12)
    assert 2 * metrics["critic/loss"] == pytest.approx(logged["train/value_loss"], rel=1e-11)
    assert logged["train/clip_fraction"] > 0.05, "ratios leave the interval"
    assert len(gradients) == len(their_gradients) == EPOCHS
    critic = flat(layers(module.critic_advantages.critic)).numel()
    for found, expected in zip(gradients, their_gradients, strict=True):
        equal(found[:-critic], expected[:-critic])
        equal(found[-critic:], expected[-critic:])
    after, start = flat(peers_layers(ppo.policy)), flat(before)
    assert (after - start).abs().median() > RATE, "each parameter takes four steps"
    found = flat(layers(module.policy, module.critic_advantages.critic))
    torch.testing.assert_close(found - start, after - start, rtol=0, atol=1e-12)
