"""Exponentiated gradient against its equation."""

import math

import pytest
import torch

from lightning_cgrpo.multipliers import ExponentiatedGradient
from tests.multipliers.stepping import maker, step

controller = maker(ExponentiatedGradient, 2)


def test_steps_by_hand() -> None:
    made = controller(lr=2.0, clip=0.1, bound=0.45)
    step(made, 0.05, -0.3)
    assert made.logits.tolist() == pytest.approx([0.1, -0.2])
    step(made, 0.7, -0.3)
    assert made.logits.tolist() == pytest.approx([0.3, -0.4])
    step(made, 0.1, -0.1)
    assert made.logits.tolist() == pytest.approx([0.45, -0.45])
    total = 1 + math.exp(0.45) + math.exp(-0.45)
    assert made.weights.tolist() == pytest.approx([1 / total, math.exp(0.45) / total, math.exp(-0.45) / total])


def test_starts_uniform() -> None:
    assert controller().weights.tolist() == pytest.approx([1 / 3] * 3)
    assert controller(init=math.log(2)).weights.tolist() == pytest.approx([0.2, 0.4, 0.4])


def test_reduces_to_multiplicative_weights() -> None:
    made = controller(lr=0.7, clip=math.inf, bound=math.inf)
    expected = torch.full((3,), 1 / 3, dtype=torch.float64)
    for violations in torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        step(made, *violations.tolist())
        expected = expected * torch.cat([torch.ones(1), (0.7 * violations).exp()])
        expected /= expected.sum()
        assert torch.allclose(made.weights, expected, rtol=1e-12)
