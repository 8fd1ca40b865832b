"""Choice of the next token."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
BELOW_ONE = 1 - 2**-53
"""The largest float64 below 1; a float64 times it rounds to the next float64 towards 0."""


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
