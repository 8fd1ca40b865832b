"""Generalized advantages against their definition, closed forms, and what they promise of variance."""

import itertools

import pytest
import torch

from lightning_cgrpo.grpo.gae import generalized_advantages
from lightning_cgrpo.objective.objective import Components

LENGTHS = torch.tensor([[5, 1, 3], [4, 2, 0]])
MASK = torch.arange(5) < LENGTHS[..., None]


def by_definition(rewards, values, length, gamma, gae_lambda):
    """A_t = sum over l of (gamma lambda)^l times the temporal difference at t + l, in plain Python."""
    values = [*values[:length], 0.0]
    errors = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(length)]
    return [
        sum((gamma * gae_lambda) ** (later - t) * errors[later] for later in range(t, length)) for t in range(length)
    ]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (1.0, 1.0), (0.5, 0.0), (0.0, 1.0)])
def test_equals_the_definition(gamma, gae_lambda):
    """Whatever stands after the answers' ends."""
    draw = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, *MASK.shape, generator=draw, dtype=torch.float64) for _ in range(2))
    got = generalized_advantages(rewards, values, MASK, gamma, gae_lambda)
    for j, b, g in itertools.product(range(3), range(2), range(3)):
        length = int(LENGTHS[b, g])
        expected = by_definition(rewards[j, b, g].tolist(), values[j, b, g].tolist(), length, gamma, gae_lambda)
        assert got[j, b, g, :length].tolist() == pytest.approx(expected, abs=1e-12)
        assert got[j, b, g, length:].eq(0).all()


def test_steps_of_the_world_take_no_time():
    """With gaps in the mask, advantages and rewards are those of the own steps alone, wherever the gaps are."""
    draw = torch.Generator().manual_seed(0)
    own = torch.tensor([True, True, False, False, True, False, True, False])
    rewards, values = torch.randn(2, 8, generator=draw, dtype=torch.float64).unbind()
    rewards = torch.where(own, rewards, 0)
    found = generalized_advantages(rewards, values, own, 0.9, 0.7)
    alone = generalized_advantages(rewards[own], values[own], own[own], 0.9, 0.7)
    torch.testing.assert_close(found[own], alone, rtol=0, atol=1e-14)
    assert (found[~own] == 0).all()
    # A reward of the whole answer stands at the last own step alone, not at the end of each turn.
    components = Components(torch.full((1, 1, 1), 3.0), torch.ones(1, 1, 1, dtype=torch.bool))
    assert components.by_step(own[None, None]).nonzero()[:, -1].tolist() == [6]
