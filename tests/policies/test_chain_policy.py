"""Chains beside closed forms in float64: moments, densities, divergences; and a policy over them."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.chain_policy import ChainPolicy
from lightning_cgrpo.policies.chains import DDIM, Flow
from tests.refusals import refused

TINY = 1e-9
CHAINS = [
    DDIM(steps=4, eta=1.0, min_std=TINY),
    DDIM(steps=7, eta=0.3, min_std=TINY),
    DDIM(steps=3, eta=0.6, min_std=TINY, predicts_noise=True),
    Flow(steps=4, noise=0.5, min_std=TINY),
    Flow(steps=6, noise=1.0, min_std=TINY),
]
SIZE, CONTEXT = 3, 2


@pytest.fixture(autouse=True)
def in_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


class Linear(nn.Module):
    """Outputs that are linear in the state, the time and the context, so that chains are jointly Gaussian."""

    def __init__(self, size=SIZE, context=CONTEXT):
        super().__init__()
        self.layer = nn.Linear(size + 1 + context, size)

    def forward(self, states, times, context):
        return self.layer(torch.cat([states, times[:, None], context], 1))


class Truth(nn.Module):
    """Outputs of a network that knows the answer, in the convention of the chain."""

    def __init__(self, chain, answer):
        super().__init__()
        self.chain, self.answer = chain, answer

    def forward(self, states, times, context):
        step = min(range(self.chain.steps), key=lambda k: abs(self.chain.times[k] - float(times[0])))
        a, b = self.chain.answer_shares[step], self.chain.noise_shares[step]
        noise = (states - a * self.answer) / b
        if isinstance(self.chain, Flow):
            return noise - self.answer
        return noise if self.chain.predicts_noise else self.answer.expand_as(states)


def sampled(policy, count, context=None):
    context = torch.randn(count, CONTEXT) if context is None else context
    return policy.sample(context, torch.rand(count, policy.draws())), context


def rollouts_of(chains, context, group):
    """Chains of consecutive rows as groups; all rows of a group share their context."""

    def grouped(values):
        return values.unflatten(0, (-1, group))

    states = grouped(chains.states)
    inputs = {"context": context[::group], "start": grouped(chains.start)}
    return Rollouts(states, torch.ones(states.shape[:3], dtype=torch.bool), inputs, grouped(chains.log_probs))


@pytest.mark.parametrize("chain", CHAINS)
def test_states_have_the_marginal_moments_of_the_mixture(chain):
    """Song et al. (2021), lemma 1: by the closed form of each step, and by samples."""
    answer = torch.tensor([1.5, -2.0, 0.3])
    network = Truth(chain, answer)
    for step in range(chain.steps):
        a, b = chain.answer_shares[step], chain.noise_shares[step]
        # A step's mean is linear in the state: its value and slope give the moments after the step.
        at = torch.stack([a * answer, a * answer + 1])
        low, high = chain.mean(at, network(at, torch.full((2,), chain.times[step]), None), step)
        variance = ((high - low) * b).square() + chain.stds[step] ** 2
        assert torch.allclose(low, chain.answer_shares[step + 1] * answer, rtol=0, atol=1e-12)
        assert torch.allclose(variance, torch.full((3,), chain.noise_shares[step + 1] ** 2), rtol=0, atol=1e-12)
    count = 20_000
    chains, _ = sampled(ChainPolicy(network, SIZE, chain, anchors=[answer.tolist()]), count)
    for step in range(chain.steps):
        b = chain.noise_shares[step + 1]
        mean, std = chains.states[:, step].mean(0), chains.states[:, step].std(0)
        error = 5 * b / math.sqrt(count) + 1e-8
        assert ((mean - chain.answer_shares[step + 1] * answer).abs() < error).all()
        assert ((std - b).abs() < error).all()


@pytest.mark.parametrize("chain", [DDIM(4), DDIM(3, 0.4, 0.2, predicts_noise=True), Flow(5)])
def test_log_probabilities_are_those_of_normal_distributions_and_of_the_joint_one(chain):
    policy = ChainPolicy(Linear(), SIZE, chain)
    context = torch.randn(2, CONTEXT).repeat_interleave(3, 0)
    chains, _ = sampled(policy, 6, context)
    output = policy(policy.examples(rollouts_of(chains, context, 3)))
    # 1. One step after the other, in a loop.
    state = chains.start
    for step in range(chain.steps):
        mean = chain.mean(state, policy.net(state, torch.full((6,), chain.times[step]), context), step)
        normal = Normal(mean, chain.stds[step])
        expected = normal.log_prob(chains.states[:, step]).sum(1)
        assert torch.allclose(output.log_probs[:, step], expected, rtol=0, atol=1e-10)
        assert torch.allclose(output.entropy[:, step], normal.entropy().sum(1), rtol=0, atol=1e-12)
        state = chains.states[:, step]
    assert torch.allclose(chains.log_probs, output.log_probs, rtol=0, atol=1e-10)
    # 2. All states of a chain at once: mean and covariance by unrolling the linear steps.
    for row in range(6):
        mean, map_of_noise = chains.start[row], torch.zeros(SIZE, chain.steps * SIZE)
        means, maps = [], []
        for step in range(chain.steps):
            at = torch.cat([mean[None], mean + torch.eye(SIZE)])
            times = torch.full((SIZE + 1,), chain.times[step])
            reached = chain.mean(at, policy.net(at, times, context[row].expand(SIZE + 1, -1)), step)
            slope = (reached[1:] - reached[0]).T
            mean, map_of_noise = reached[0], slope @ map_of_noise
            map_of_noise[:, step * SIZE : (step + 1) * SIZE] += chain.stds[step] * torch.eye(SIZE)
            means.append(mean)
            maps.append(map_of_noise)
        whole = torch.cat(maps)
        joint = MultivariateNormal(torch.cat(means), whole @ whole.T)
        expected = joint.log_prob(chains.states[row].flatten())
        assert output.log_probs[row].sum().item() == pytest.approx(expected.item(), abs=1e-8)


def test_the_kl_is_that_of_normal_distributions_and_gradients_reach_the_network():
    policy = ChainPolicy(Linear(), SIZE, Flow(3))
    context = torch.randn(4, CONTEXT)
    chains, _ = sampled(policy, 4, context)
    examples = policy.examples(rollouts_of(chains, context, 1))
    reference = policy.reference()
    with torch.no_grad():
        policy.net.layer.weight += 0.1
    before = reference(examples)
    output = policy(examples, before)
    for step, std in enumerate(policy.chain.stds):
        pair = [Normal(found.parameters[0][:, step], std) for found in (output, before)]
        assert torch.allclose(output.kl[:, step], kl_divergence(*pair).sum(1), rtol=0, atol=1e-12)
    output.log_probs.sum().backward()
    assert torch.autograd.gradcheck(lambda _: policy(examples).log_probs, (policy.net.layer.weight,))
    # A minibatch has the same values.
    assert torch.equal(policy(examples[torch.tensor([2, 0])]).log_probs, output.log_probs[[2, 0]])


def test_chains_start_around_anchors_with_equal_chances():
    anchors = [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]]
    policy = ChainPolicy(Linear(), SIZE, Flow(steps=2, start=0.1), anchors)
    chains, _ = sampled(policy, 4000)
    near = torch.cdist(chains.start, 0.9 * torch.tensor(anchors)).argmin(1)
    assert near.double().mean().item() == pytest.approx(0.5, abs=0.04)
    for row, anchor in enumerate(torch.tensor(anchors)):
        starts = chains.start[near == row]
        assert torch.allclose(starts.mean(0), 0.9 * anchor, rtol=0, atol=0.02)
        assert torch.allclose(starts.std(0), torch.full((3,), 0.1), rtol=0, atol=0.01)


def test_mistakes_are_told_in_one_line(tmp_path):
    for name, call in {
        "min_std": lambda: DDIM(min_std=0.0),
        "eta": lambda: DDIM(eta=0.0),
        "noise": lambda: Flow(noise=0.0),
        "start": lambda: Flow(start=0.0),
        "steps": lambda: Flow(steps=0),
        "anchors": lambda: ChainPolicy(Linear(), SIZE, anchors=[[1.0]]),
    }.items():
        with pytest.raises(ValueError, match=f"Expected argument `{name}` to be"):
            call()
    with pytest.raises(ValueError, match="Expected argument `anchors` to be finite"):
        ChainPolicy(Linear(), SIZE, anchors=[[1.0, math.nan, 0.0]])
    missing = ChainPolicy(Linear(), SIZE, weights=str(tmp_path))
    assert "model.safetensors of a Linear" in refused(missing.load)
    (tmp_path / "model.safetensors").write_bytes(b"junk" * 10)
    assert "model.safetensors of a Linear" in refused(missing.load)


def test_a_network_whose_outputs_would_broadcast_is_refused():
    chains, context = sampled(ChainPolicy(Linear(), SIZE), 4)
    narrow = Linear()
    narrow.layer = nn.Linear(SIZE + 1 + CONTEXT, 1)
    policy = ChainPolicy(narrow, SIZE)
    assert "[4, 3] to outputs of this shape, but got [4, 1]" in refused(sampled, policy, 4)
    examples = policy.examples(rollouts_of(chains, context, 2))
    assert "but got [20, 1], try a last layer with 3" in refused(policy, examples)
