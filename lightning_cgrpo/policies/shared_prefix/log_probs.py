"""Log-probabilities of tokens, and KL over the vocabulary, from hidden states in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_cgrpo.policies.onednn import product


def chunk_rows(vocabulary: int, device: str) -> int:
    """Tokens in a chunk: 64 MB of float32 logits on a CPU, 256 MB elsewhere.

    Each chunk reads the output layer's weight again. At a vocabulary of 152,000, 64 MB are 110 tokens, too few to
    occupy a GPU.

    Args:
        device: a type such as ``cpu``.
    """
    return max((64 if device == "cpu" else 256) * 2**20 // (4 * vocabulary), 1)


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    actions: Tensor,
    temperature: float = 1.0,
    rows: int | None = None,
    reference: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """Log-probabilities and entropies ``[M]``, differentiable once, of softmax(hidden weight^T / temperature).

    With a reference, also KL(policy || reference) over all actions, ``[M]``.

    If there are several chunks, the backward pass recomputes the logits. The product's factors have autocast's dtype.
    The rest is at least float32. Only CUDA gives the product in float32; elsewhere it is rounded to its factors' dtype.

    Args:
        hidden: ``[M, D]``.
        weight: ``[V, D]`` of the output layer.
        actions: ``[M]`` int64.
        rows: tokens in a chunk; `chunk_rows` by default.
        reference: hidden states ``[M, D]`` and weight ``[V, D]`` of the reference, which gets no gradient.
    """
    device = hidden.device.type
    factors = [hidden, weight, *([] if reference is None else reference)]
    if torch.is_autocast_enabled(device):
        factors = [factor.to(torch.get_autocast_dtype(device)) for factor in factors]
    with torch.autocast(device, enabled=False):
        size = rows or chunk_rows(len(weight), device)
        hidden, weight, *others = factors
        values: tuple[Tensor, ...] = _LinearLogProbs.apply(hidden, weight, actions, 1 / temperature, size, *others)
    return values


class _LinearLogProbs(torch.autograd.Function):
    """Derivatives of log p_a, the entropy H and D = KL(p || q), for z = logits / temperature, p = softmax(z), action a.

    d log p_a / dz_j = [j = a] - p_j        d H / dz_j = -p_j (log p_j + H)        d D / dz_j = p_j (log p_j/q_j - D)
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, actions: Tensor, scale: float, size: int, *reference: Tensor
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        log_probs, entropy, norm, kl, reference_norm = hidden.new_empty(5, len(hidden), dtype=dtype).unbind()
        single = len(hidden) <= size
        probs = None
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            z = _logits(hidden[rows], weight, scale, dtype)
            of_action = z.gather(1, actions[rows, None])[:, 0]
            top = z.amax(1, keepdim=True)
            z.sub_(top)
            probs = z.exp()
            total = probs.sum(1)
            norm[rows] = total.log() + top[:, 0]
            # H = log sum_j exp(z_j) - sum_j p_j z_j, with z relative to the largest.
            entropy[rows] = total.log() - torch.linalg.vecdot(probs, z) / total
            log_probs[rows] = of_action - norm[rows]
            if reference:
                other = _logits(reference[0][rows], reference[1], scale, dtype)
                top = other.amax(1, keepdim=True)
                rest = other.sub_(top).exp().sum(1).log()
                reference_norm[rows] = rest + top[:, 0]
                # Both relative to their largest, so that equal policies have a KL of exactly 0.
                kl[rows] = torch.linalg.vecdot(probs, z.sub_(other)) / total - (total.log() - rest)
            if single:
                probs.div_(total[:, None])
        kept = probs if single else None
        ctx.save_for_backward(hidden, weight, actions, norm, entropy, kept, kl, reference_norm, *reference)
        ctx.scale, ctx.size = scale, size
        ctx.set_materialize_grads(False)
        return (log_probs, entropy, kl) if reference else (log_probs, entropy)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None, of_kl: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, actions, norm, entropy, kept, kl, reference_norm, *reference = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight, dtype=norm.dtype) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), ctx.size):
            rows = slice(start, start + ctx.size)
            if kept is None:
                probs = _logits(hidden[rows], weight, ctx.scale, norm.dtype).sub_(norm[rows, None]).exp_()
            else:
                probs = kept
            mass = torch.zeros_like(norm[rows])
            if of_log_probs is not None:
                mass = mass + of_log_probs[rows]
            if of_entropy is not None:
                mass = mass + entropy[rows] * of_entropy[rows]
                gradient = torch.special.entr(probs).mul_(of_entropy[rows, None])
                gradient.addcmul_(probs, mass[:, None], value=-1)
            else:
                gradient = probs * -mass[:, None]
            if of_kl is not None:
                log_q = _logits(reference[0][rows], reference[1], ctx.scale, norm.dtype).sub_(
                    reference_norm[rows, None]
                )
                # entr(p) = -p log p is 0 where p underflows.
                divergence = torch.special.entr(probs).addcmul_(probs, log_q.add_(kl[rows, None]))
                gradient.addcmul_(divergence, of_kl[rows, None], value=-1)
            if of_log_probs is not None:
                gradient.scatter_add_(1, actions[rows, None], of_log_probs[rows, None])
            gradient = gradient.mul_(ctx.scale).to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[rows] = product(gradient, weight.T)
            if of_weight is not None:
                of_weight.addmm_(gradient.T.to(norm.dtype), hidden[rows].to(norm.dtype))
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        return of_hidden, of_weight, None, None, None, *(None for _ in reference)


def _logits(hidden: Tensor, weight: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    if hidden.is_cuda and hidden.dtype != dtype:
        logits = torch.mm(hidden, weight.T, out_dtype=dtype)  # not rounded to bfloat16 in between
    else:
        logits = product(hidden, weight).to(dtype)
    return logits if scale == 1 else logits.mul_(scale)
