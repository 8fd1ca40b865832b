"""What is maximized at a step; test_losses.py has the clipped one number by number, test_trl_oracle.py SAPO."""

import pytest
import torch
from torch import Tensor

from lightning_cgrpo.grpo.surrogates import CISPO, SAPO, Clipped, Surrogate

ALL = [Clipped(), Clipped(0.1, 0.3, 2.0), CISPO(), CISPO(1.0), SAPO(), SAPO(3.0, 0.5)]


def at(surrogate: Surrogate, ratio: float, advantage: float) -> tuple[Tensor, Tensor, bool]:
    """Value, its derivative by the log-probability, and whether a bound acts."""
    log_ratio = torch.tensor(ratio, dtype=torch.float64).log().requires_grad_()
    value, bounded = surrogate(log_ratio, torch.tensor(advantage, dtype=torch.float64))
    value.backward()
    return value.detach(), log_ratio.grad, bool(bounded)


@pytest.mark.parametrize("advantage", [-1.5, 0.0, 2.0])
@pytest.mark.parametrize("surrogate", ALL, ids=lambda s: str(vars(s)))
def test_at_ratio_one_the_gradient_is_the_advantage(surrogate: Surrogate, advantage: float) -> None:
    _, gradient, bounded = at(surrogate, 1.0, advantage)
    assert gradient.item() == pytest.approx(advantage) and not bounded


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "bounded"),
    [(2.0, 1.0, 2.0, False), (9.0, 1.0, 5.0, True), (9.0, -2.0, -10.0, True), (0.1, 1.0, 0.1, False)],
)
def test_cispo_bounds_the_weight_and_keeps_the_gradient(
    ratio: float, advantage: float, gradient: float, bounded: bool
) -> None:
    value, got, acts = at(CISPO(5.0), ratio, advantage)
    assert got.item() == pytest.approx(gradient) and acts == bounded
    assert value.item() == pytest.approx(gradient * torch.tensor(ratio).log().item())
