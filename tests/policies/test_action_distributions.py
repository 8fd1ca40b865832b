"""Actions, log-densities and entropies against torch.distributions and numerical integrals, in float64."""

import itertools
import math

import pytest
import torch
from scipy.integrate import quad
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from lightning_cgrpo.policies.action_distributions import LOG_STD, Categorical, Gaussian

LOW, HIGH = (-2.0, 0.0), (2.0, 0.5)


def outputs(seed=0, number=50, size=2):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(number, size, generator=generator, dtype=torch.float64)
    return torch.cat([means, torch.rand(number, size, generator=generator, dtype=torch.float64) * 2 - 1.5], -1)


def draws(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def oracle(given, low=None, high=None):
    mean, log_std = given.chunk(2, -1)
    normal = Normal(mean, log_std.exp())
    if low is None:
        return Independent(normal, 1)
    low, high = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
    squash = [TanhTransform(), AffineTransform((low + high) / 2, (high - low) / 2)]
    return Independent(TransformedDistribution(normal, squash), 1)


@pytest.mark.parametrize("bounds", [(None, None), (LOW, HIGH)])
def test_densities_are_those_of_torch(bounds):
    acts, given = Gaussian(2, *bounds), outputs()
    actions = acts.sample(given, draws(50, 2))
    found, expected = acts.evaluate(given, actions), oracle(given, *bounds)
    torch.testing.assert_close(found.log_probs, expected.log_prob(acts.applied(actions)), rtol=1e-9, atol=1e-9)
    if bounds == (None, None):
        torch.testing.assert_close(found.entropy, expected.entropy())


def test_actions_are_quantiles():
    acts, given = Gaussian(2), outputs()
    mean, log_std = given.chunk(2, -1)
    chances = draws(50, 2)
    torch.testing.assert_close(Normal(mean, log_std.exp()).cdf(acts.sample(given, chances)), chances)
    assert acts.sample(given, torch.zeros(50, 2)).isfinite().all()


def test_entropy_of_squashed_actions_is_the_integral():
    """-p log p over the latent action on a fine grid; quadrature and grid share no code."""
    acts, given = Gaussian(1, -2.0, 2.0), outputs(number=20, size=1)
    grid = torch.linspace(-14, 14, 20_001, dtype=torch.float64)
    log_p = oracle(given[:, None].expand(20, len(grid), 2)).log_prob(grid[None, :, None])
    log_slope = math.log(2.0) + 2 * (math.log(2) - grid - torch.nn.functional.softplus(-2 * grid))
    expected = torch.trapezoid(-log_p.exp() * (log_p - log_slope), grid)
    torch.testing.assert_close(acts.evaluate(given, torch.zeros(20, 1)).entropy, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bounds", [(None, None), (LOW, HIGH)])
def test_kl_is_torch_s_and_squashing_keeps_it(bounds):
    policy, reference = outputs(), outputs(seed=3)
    expected = torch.distributions.kl_divergence(oracle(policy), oracle(reference))
    torch.testing.assert_close(Gaussian(2, *bounds).kl(policy, reference), expected)


def test_saturated_actions_keep_their_densities():
    """In float32, the inverse of tanh would be infinite here; gradients stay finite, and actions within bounds."""
    acts = Gaussian(1, -2.0, 2.0)
    given = torch.tensor([[12.0, LOG_STD[0] - 1]], requires_grad=True)
    actions = torch.tensor([[12.001]])
    found = acts.evaluate(given, actions)
    (found.log_probs + found.entropy).sum().backward()
    assert found.log_probs.isfinite().all() and given.grad.isfinite().all() and given.grad[0, 0] != 0
    assert acts.applied(torch.tensor([[100.0], [-100.0]])).tolist() == [[2], [-2]]


def test_logits():
    given = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chances = draws(30)
    actions = Categorical().sample(given, chances)
    expected = torch.distributions.Categorical(logits=given)
    found = Categorical().evaluate(given, actions)
    torch.testing.assert_close(found.log_probs, expected.log_prob(actions))
    torch.testing.assert_close(found.entropy, expected.entropy())
    other = given.flip(0)
    divergence = torch.distributions.kl_divergence(expected, torch.distributions.Categorical(logits=other))
    torch.testing.assert_close(Categorical().kl(given, other), divergence)
    masked, reference = (torch.nn.functional.pad(logits, (1, 2), value=-torch.inf) for logits in (given, other))
    torch.testing.assert_close(Categorical().kl(masked, reference), divergence)
    output = Categorical().evaluate(masked.requires_grad_(), actions + 1)
    torch.testing.assert_close((output.log_probs, output.entropy), (found.log_probs, found.entropy))
    output.entropy.sum().backward()
    assert masked.grad.isfinite().all()
    # Rounding leaves a rest above the float32 sums, which no masked action may take.
    assert Categorical().sample(masked.detach().float(), torch.full((30,), 1 - 2.0**-53)).max() == 4
    above = expected.probs.cumsum(-1).gather(-1, actions[:, None]).squeeze(-1)
    assert ((above > chances) & (above - expected.log_prob(actions).exp() <= chances)).all()


@pytest.mark.parametrize("std", [1.0, 1.5, 4.0, 7.0])
@pytest.mark.parametrize("mean", [0.0, -1.0, 5.0, 30.0])
def test_entropy_of_a_wide_squashed_gaussian_is_scipy_s_integral(mean, std):
    def log_slope(z):
        x = abs(mean + std * z)
        return 2 * (math.log(2) - x - math.log1p(math.exp(-2 * x))) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    kink = -mean / std
    parts = [-12.0, kink, 12.0] if abs(kink) < 12 else [-12.0, 12.0]
    slope = sum(quad(log_slope, *ends, limit=200, epsabs=1e-12)[0] for ends in itertools.pairwise(parts))
    expected = math.log(std) + 0.5 * math.log(2 * math.pi * math.e) + slope + math.log(3.0)
    outputs = torch.tensor([[mean, math.log(std)]], dtype=torch.float64, requires_grad=True)
    entropy = Gaussian(1, -2.0, 4.0).evaluate(outputs, torch.zeros(1, 1, dtype=torch.float64)).entropy
    assert entropy.item() == pytest.approx(expected, abs=1e-7 if std == 1.0 else 1e-9)
    entropy.sum().backward()
    assert outputs.grad.isfinite().all()
