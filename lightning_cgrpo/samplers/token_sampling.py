"""Which token is next: filters of a distribution, and the inverse of its cumulative distribution."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Probabilities ``[R, V]`` with 0 outside of the smallest set of likeliest tokens that has the mass `top_p`.

    Not normalized. Among equals, lower token numbers come first; there is always at least one token.

    Example:
        >>> nucleus(torch.tensor([[0.2, 0.5, 0.3]]), 0.6)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    inside = before < top_p * ordered.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * inside)


def likeliest(probabilities: Tensor, top_k: int | None) -> Tensor:
    """Probabilities ``[R, V]`` with 0 for all but the k largest; equals of the k-th stay.

    Example:
        >>> likeliest(torch.tensor([[0.2, 0.5, 0.3]]), 2)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if top_k is None or top_k >= probabilities.shape[-1]:
        return probabilities
    least = probabilities.topk(top_k, dim=-1).values[:, -1:]
    return probabilities.masked_fill(probabilities < least, 0)


def not_rare(probabilities: Tensor, min_p: float) -> Tensor:
    """Probabilities ``[R, V]`` with 0 for less than `min_p` times the largest.

    Example:
        >>> not_rare(torch.tensor([[0.2, 0.5, 0.3]]), 0.5)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if min_p <= 0:
        return probabilities
    return probabilities.masked_fill(probabilities < min_p * probabilities.amax(-1, keepdim=True), 0)


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]`` by the inverse of the cumulative distribution of weights ``[R, V]`` at draws ``[R]`` in [0, 1).

    A token of weight 0 is never chosen. Sums are float64: 1 - 2^-24 is the largest float32 below 1, which would leave
    less than that to the tail of a large vocabulary. Of a large vocabulary, blocks are summed first, and only the
    draw's own block token by token.

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
    """Where the running sum first exceeds draws * total (or `target`), and how far into that entry that is."""
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    # Below the total also where the product rounds up to it, so that what is found has a share of the total.
    target = torch.minimum(draws * total if target is None else target, below)  # type: ignore[operator]
    found = torch.searchsorted(cumulative, target[:, None], right=True)
    before = torch.where(found > 0, cumulative.gather(-1, (found - 1).clamp(min=0)), 0)
    return found[:, 0], target - before[:, 0]
