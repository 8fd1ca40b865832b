"""Episodes sampled all at once equal episodes played one at a time with the same random numbers."""

import pytest
import torch

from lightning_cgrpo import CategoricalMLP, EnvironmentSampler, GaussianMLP
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.policies.network_policy import NetworkPolicy
from lightning_cgrpo.samplers.environment import Environment
from lightning_cgrpo.tasks.gridworld import Gridworld, Layouts

HORIZON, GROUP = 25, 4
INDEX = torch.tensor([11, 2, 30, 7, 23])
HAPPENED = ("goal", "lava", "battery")


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Bounded(Environment):
    max_steps, action_size, low, high = 1, 1, (-1.0,), (0.1,)

    def reset(self, prompts, group_size):
        raise NotImplementedError


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.1), (-1.1, 0.1), (-1.0, 0.11), (-0.9, 0.1), (None, None)])
def test_the_policys_bounds_are_those_of_the_world(low, high):
    """Up to the rounding of float32, in which worlds state them."""
    policy = GaussianMLP(2, 1, low=low, high=high if high is None else float(torch.tensor(high, dtype=torch.float32)))
    sampler = EnvironmentSampler(Bounded())
    if (low, high) == (-1.0, 0.1):
        sampler.check_policy(policy)
        return
    with pytest.raises(UserError, match=r"bounds to be those of Bounded, low \(-1\.0,\)"):
        sampler.check_policy(policy)


class Elementwise(NetworkPolicy):
    """Logits by arithmetic on single numbers: the same to the last bit whatever else is in the batch.

    (A matrix product sums in another order for another number of rows.)
    """

    def __init__(self):
        super().__init__(torch.nn.Identity())

    def actor(self):
        def act(observations):
            x, y, goal_x, goal_y, battery, *window = observations.unbind(-1)
            stay = (1 - battery) - 3 + window[12]
            return torch.stack([y - goal_y, goal_y - y, x - goal_x, goal_x - x, stay], -1)

        return act


def make_policy(name):
    torch.manual_seed(0)
    if name == "elementwise":
        return Elementwise()
    policy = CategoricalMLP(30, 5, hidden=(16,))
    with torch.no_grad():
        policy.net[-1].weight.mul_(4)  # far from uniform
        policy.net[-1].bias[4] = -3  # recharging seldom
    return policy


def layouts(index=INDEX):
    # Small, so that some episodes end early and others never.
    return Layouts(100, size=4, lava=3).groups(index)


def noise_of(index, seed=0, update=5):
    return lambda *shape: uniform(seed, Stream.ROLLOUT, update, index, shape)


def rollout(policy, index=INDEX, **options):
    with torch.no_grad():
        return EnvironmentSampler(Gridworld(HORIZON)).rollout(policy, layouts(index), GROUP, noise_of(index, **options))


def one_at_a_time(policy, index):
    """Each episode by itself: look, choose by the inverse of the distribution function, act, until it ends."""
    draws = noise_of(torch.tensor([index]))(GROUP, HORIZON)[0]
    for member in range(GROUP):
        episode = Gridworld(HORIZON).reset(layouts(torch.tensor([index])), 1)
        state, steps = episode.start, []
        for draw in draws[member].tolist():
            observation = episode.observe(state)
            with torch.no_grad():
                log_probs = policy.actor()(observation)[0].log_softmax(-1)
            action, mass = 0, log_probs[0].exp().item()
            while draw >= mass and action < 4:
                action += 1
                mass += log_probs[action].exp().item()
            before, state = state, episode.step(state, torch.tensor([action]))
            happened = episode.report(before, torch.tensor([action]), state)
            steps.append({"observation": observation[0], "action": action, "log_prob": log_probs[action].item()})
            steps[-1] |= {name: bool(happened[name]) for name in HAPPENED}
            if bool(episode.ended(state)):
                break
        yield steps


@pytest.mark.parametrize("name", ["elementwise", "mlp"])
def test_equals_playing_one_episode_at_a_time(name):
    """Actions, observations, events, lengths, and nothing after an episode's end; log-probabilities to rounding."""
    policy = make_policy(name)
    rollouts = rollout(policy)
    assert rollouts.mask.shape == rollouts.actions.shape == (len(INDEX), GROUP, HORIZON)
    for row, index in enumerate(INDEX.tolist()):
        for column, steps in enumerate(one_at_a_time(policy, index)):
            length = len(steps)
            where = (row, column, slice(0, length))
            assert rollouts.mask[row, column].tolist() == [True] * length + [False] * (HORIZON - length)
            assert rollouts.actions[where].tolist() == [step["action"] for step in steps]
            assert torch.equal(rollouts.inputs["observations"][where], torch.stack([s["observation"] for s in steps]))
            expected = torch.tensor([step["log_prob"] for step in steps])
            torch.testing.assert_close(rollouts.log_probs[where], expected, rtol=0, atol=1e-12)
            for happened in HAPPENED:
                assert rollouts.info[happened][where].tolist() == [step[happened] for step in steps]
    padding = ~rollouts.mask
    assert not rollouts.inputs["observations"][padding].any() and not rollouts.log_probs[padding].any()
    assert not any(rollouts.info[happened][padding].any() for happened in HAPPENED)
    # The comparison covers episodes that end at different times, and some that don't.
    assert rollouts.lengths.unique().numel() > 3
    assert (rollouts.lengths == HORIZON).any() and all(rollouts.info[happened].any() for happened in HAPPENED)


def test_log_probs_are_those_of_training():
    """What the sampler reports is the denominator of the ratio, so it must be the policy's own, bit for bit."""
    policy = make_policy("elementwise")
    rollouts = rollout(policy)
    assert torch.equal(policy(policy.examples(rollouts)).log_probs, rollouts.log_probs[rollouts.mask])
    mlp = make_policy("mlp")
    rollouts = rollout(mlp)
    examples = mlp.examples(rollouts)
    assert len(examples) == rollouts.mask.sum()
    output = mlp(examples)
    torch.testing.assert_close(output.log_probs, rollouts.log_probs[rollouts.mask], rtol=0, atol=1e-12)
    assert output.log_probs.requires_grad and not rollouts.log_probs.requires_grad


def test_no_prompts():
    """A process may get none."""
    rollouts = rollout(make_policy("mlp"), INDEX[:0])
    assert rollouts.actions.shape == rollouts.mask.shape == (0, GROUP, HORIZON)
    assert rollouts.inputs["observations"].shape == (0, GROUP, HORIZON, 30)
