"""Choice of the next token."""

from __future__ import annotations

import torch
from torch import Tensor


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits ``[R, V]`` of seen tokens by `penalty`, and multiply negative ones (Keskar et al., 2019).

    Example:
        >>> penalized(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  2.]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]``, drawn by the inverse cumulative distribution of weights ``[R, V]`` at draws ``[R]`` in [0, 1).

    Sums are float64, because float32 would cut the tail of a large vocabulary.

    Example:
        >>> sample(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.69]))
        tensor([1])
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    # A draw below 1 times the total is below the total also after rounding, because rounding is monotone. NaN, which
    # the engine reports later, must not give an index outside.
    target = draws.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=cumulative.shape[1] - 1)
