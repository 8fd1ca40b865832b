"""Log-probabilities, entropies and KL from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lightning_cgrpo.policies.shared_prefix.log_probs import chunk_rows


def token_log_probs(logits: Tensor, actions: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies ``[...]``, differentiable once, of softmax(logits / temperature).

    Both are float32 (float64 for float64 logits).

    Args:
        logits: ``[..., V]``.
        actions: ``[...]`` int64.
    """
    log_probs, entropy = _TokenLogProbs.apply(logits, actions, temperature)
    return log_probs, entropy


def kl_divergence(logits: Tensor, reference: Tensor, temperature: float = 1.0, rows: int | None = None) -> Tensor:
    """KL ``[...]`` of softmax(logits / temperature) to softmax(reference / temperature), at least float32.

    The backward pass recomputes each chunk.

    Args:
        logits: ``[..., V]``, as `reference`.
        rows: distributions in a chunk; `chunk_rows` by default.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)

    def divergence(chunk: Tensor, reference_chunk: Tensor) -> Tensor:
        log_p = (chunk.to(dtype) / temperature).log_softmax(-1)
        log_q = (reference_chunk.to(dtype) / temperature).log_softmax(-1)
        # Logits of -inf mask actions in both distributions; elsewhere the difference would be NaN.
        return (log_p.exp() * torch.where(log_p > -torch.inf, log_p - log_q, 0)).sum(-1)

    size = rows or chunk_rows(logits.shape[-1], logits.device.type)
    chunks = logits.flatten(0, -2).split(size)
    reference_chunks = reference.flatten(0, -2).split(size)
    divergences = []
    for pair in zip(chunks, reference_chunks, strict=True):
        divergences.append(checkpoint(divergence, *pair, use_reentrant=False))
    return torch.cat(divergences).view(logits.shape[:-1])


class _TokenLogProbs(torch.autograd.Function):
    """Keeps the logits but no probabilities for the backward pass; derivatives as in `_LinearLogProbs`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        normalizer = scaled.logsumexp(-1, keepdim=True)
        log_probs = scaled.gather(-1, actions[..., None]) - normalizer
        entropy = torch.special.entr(scaled.sub_(normalizer).exp_()).sum(-1, keepdim=True)
        ctx.save_for_backward(logits, actions, normalizer, entropy)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return log_probs[..., 0], entropy[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, None, None]:
        logits, actions, normalizer, entropy = ctx.saved_tensors
        probs = (logits.to(normalizer.dtype) / ctx.temperature).sub_(normalizer).exp_()
        mass = torch.zeros_like(normalizer)
        grad: Tensor | float = 0.0
        if of_entropy is not None:
            grad = torch.special.entr(probs).mul_(of_entropy[..., None])
            mass = entropy * of_entropy[..., None]
        if of_log_probs is not None:
            mass = mass + of_log_probs[..., None]
        result = probs.mul_(-mass).add_(grad)
        if of_log_probs is not None:
            result.scatter_add_(-1, actions[..., None], of_log_probs[..., None])
        return result.div_(ctx.temperature).to(logits.dtype), None, None
