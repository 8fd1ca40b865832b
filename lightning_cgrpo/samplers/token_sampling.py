"""Choice of the next token."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
BELOW_ONE = 1 - 2**-53
"""The largest float64 below 1; a float64 times it rounds to the next float64 towards 0."""


def top_p(probabilities: Tensor, p: float) -> Tensor:
    """Keep the fewest likeliest tokens that hold at least the share `p` of the sum (Holtzman et al., 2020).

    Args:
        probabilities: ``[R, V]``; the result is not normalized. Lower token numbers win ties.

    Example:
        >>> top_p(torch.tensor([[0.2, 0.5, 0.3]]), 0.6)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if p >= 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    inside = before < p * ordered.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * inside)


def top_k(probabilities: Tensor, k: int | None) -> Tensor:
    """Keep the k likeliest tokens (Fan et al., 2018), and ties with the k-th; None keeps all.

    Example:
        >>> top_k(torch.tensor([[0.2, 0.5, 0.3]]), 2)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if k is None or k >= probabilities.shape[-1]:
        return probabilities
    return probabilities.masked_fill(probabilities < probabilities.topk(k, dim=-1).values[:, -1:], 0)


def min_p(probabilities: Tensor, p: float) -> Tensor:
    """Keep tokens with at least `p` times the probability of the likeliest (Nguyen et al., 2024).

    Example:
        >>> min_p(torch.tensor([[0.2, 0.5, 0.3]]), 0.5)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if p <= 0:
        return probabilities
    return probabilities.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), 0)


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits ``[R, V]`` of seen tokens by `penalty`, and multiply negative ones (Keskar et al., 2019).

    Example:
        >>> penalized(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  2.]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]``, drawn by the inverse cumulative distribution of the weights ``[R, V]`` at draws ``[R]`` in [0,
    1).

    Sums are float64, because float32 would cut the tail of a large vocabulary.

    Example:
        >>> sample(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.69]))
        tensor([1])
    """
    size, target = probabilities.shape[1], draws.double()
    if size <= 2 * BLOCK:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _first_above(cumulative, target * cumulative[:, -1])
    # A block of zeros comes first, so that each block's sum before it is an entry.
    blocks = torch.nn.functional.pad(probabilities, (BLOCK, -size % BLOCK)).unflatten(1, (-1, BLOCK))
    cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = target * cumulative[:, -1]
    entry = _first_above(cumulative, target)[:, None]
    block = entry - 1
    before = cumulative.gather(1, block)[:, 0]
    inside = blocks.gather(1, entry[..., None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    # Rounding may lift the rest to the block's total or above, but the chosen entry must have a positive weight.
    rest = torch.minimum(target - before, inside[:, -1] * BELOW_ONE)
    return block[:, 0] * BLOCK + _first_above(inside, rest)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """Per row, the index ``[R]`` of the first running sum ``[R, S]`` above the target ``[R]``.

    A draw below 1 times the total is below the total also after rounding, because rounding is monotone.
    """
    # NaN, which the engine reports later, must not give an index outside.
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=cumulative.shape[1] - 1)
