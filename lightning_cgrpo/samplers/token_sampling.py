"""Choice of the next token."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


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
    rows, size = probabilities.shape
    if size <= 2 * BLOCK:
        return _inverse(probabilities.double().cumsum(-1), draws.double(), None)[0]
    blocks = -(-size // BLOCK)
    padded = torch.nn.functional.pad(probabilities, (0, blocks * BLOCK - size)).view(rows, blocks, BLOCK)
    block, rest = _inverse(padded.sum(-1, dtype=torch.float64).cumsum(-1), draws.double(), None)
    inside = padded[torch.arange(rows, device=block.device), block].double().cumsum(-1)
    return block * BLOCK + _inverse(inside, None, rest)[0]


def _inverse(cumulative: Tensor, draws: Tensor | None, target: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per row, the index of the first entry whose running sum exceeds a target, and the target minus the sum before.

    The target is given, or draws * total.
    """
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    # The target stays below the total where the product rounds up, so that the entry has a positive weight.
    target = torch.minimum(draws * total if target is None else target, below)  # type: ignore[operator]
    # NaN, which the engine reports later, must not give an index outside.
    found = torch.searchsorted(cumulative, target[:, None], right=True).clamp(max=cumulative.shape[1] - 1)
    before = torch.where(found > 0, cumulative.gather(-1, (found - 1).clamp(min=0)), 0)
    return found[:, 0], target - before[:, 0]
