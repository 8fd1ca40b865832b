"""Log-probabilities, entropies and KL from logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lightning_cgrpo.policies.shared_prefix.log_probs import chunk_rows


def token_log_probs(logits: Tensor, actions: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies ``[...]`` of softmax(logits / temperature), at least float32.

    The backward pass recomputes each chunk.

    Args:
        logits: ``[..., V]``.
        actions: ``[...]`` int64.
    """

    def values(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_p = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)
        # Logits of -inf mask actions.
        entropy = -(log_p.exp() * torch.where(log_p > -torch.inf, log_p, 0)).sum(-1)
        return log_p.gather(-1, actions[:, None])[:, 0], entropy

    size = chunk_rows(logits.shape[-1], logits.device.type)
    pieces = zip(logits.flatten(0, -2).split(size), actions.flatten().split(size), strict=True)
    parts = [checkpoint(values, *piece, use_reentrant=False) for piece in pieces]
    log_probs, entropy = (torch.cat(part).view(actions.shape) for part in zip(*parts, strict=True))
    return log_probs, entropy


def kl_divergence(logits: Tensor, reference: Tensor, temperature: float = 1.0, rows: int | None = None) -> Tensor:
    """KL ``[...]`` of softmax(logits / temperature) to softmax(reference / temperature), at least float32.

    The backward pass recomputes each chunk.

    Args:
        logits: ``[..., V]``, as `reference`.
        rows: distributions in a chunk; `chunk_rows` by default.
    """

    def divergence(*pair: Tensor) -> Tensor:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_p, log_q = ((part.to(dtype) / temperature).log_softmax(-1) for part in pair)
        # Logits of -inf mask actions in both distributions; elsewhere the difference would be NaN.
        return (log_p.exp() * torch.where(log_p > -torch.inf, log_p - log_q, 0)).sum(-1)

    size = rows or chunk_rows(logits.shape[-1], logits.device.type)
    pairs = zip(*(part.flatten(0, -2).split(size) for part in (logits, reference)), strict=True)
    return torch.cat([checkpoint(divergence, *pair, use_reentrant=False) for pair in pairs]).view(logits.shape[:-1])
