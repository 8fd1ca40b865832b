"""Log-probabilities of tokens, and KL over the vocabulary, from hidden states in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightning_cgrpo.policies.onednn import faster_linear


def chunk_rows(vocabulary: int, device: str) -> int:
    """Tokens in a chunk: 64 MB of float32 logits on a CPU, 256 MB elsewhere.

    Each chunk reads the output layer's weight again. At a vocabulary of 152,000, 64 MB are 110 tokens, too few to
    occupy a GPU.

    Args:
        device: a type such as ``cpu``.
    """
    megabytes = 64 if device == "cpu" else 256
    return max(megabytes * 2**20 // (4 * vocabulary), 1)


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
    others = [part.detach() for part in reference or ()]
    factor = weight.detach()
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden = hidden.to(dtype)
        factor = factor.to(dtype)
        others = [part.to(dtype) for part in others]
    with torch.autocast(device, enabled=False):
        size = rows or chunk_rows(len(weight), device)
        values: tuple[Tensor, ...] = _LinearLogProbs.apply(
            hidden, weight, factor, actions, 1 / temperature, size, *others
        )
    return values


class _LinearLogProbs(torch.autograd.Function):
    """Derivatives of log p_a, the entropy H and D = KL(p || q), for z = logits / temperature, p = softmax(z), action a.

    d log p_a / dz_j = [j = a] - p_j        d H / dz_j = -p_j (log p_j + H)        d D / dz_j = p_j (log p_j/q_j - D)

    The weight gets its gradient in its own dtype; products read `factor`, the weight in autocast's dtype.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        factor: Tensor,
        actions: Tensor,
        scale: float,
        size: int,
        *reference: Tensor,
    ) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # Sums of each token over the vocabulary; what follows from them is computed for all chunks at once.
        of_action, top, total, dot = hidden.new_empty(4, len(hidden), dtype=dtype).unbind()
        other_top, other_total, other_dot = hidden.new_empty(3, len(hidden) * bool(reference), dtype=dtype).unbind()
        single = len(hidden) <= size
        probs = None
        for start in range(0, len(hidden), size):
            rows = slice(start, start + size)
            z = _scaled_logits(hidden[rows], factor, scale, dtype)
            torch.gather(z, 1, actions[rows, None], out=of_action[rows, None])
            torch.amax(z, 1, out=top[rows])
            z.sub_(top[rows, None])
            probs = z.exp()
            torch.sum(probs, 1, out=total[rows])
            torch.linalg.vecdot(probs, z, out=dot[rows])
            if reference:
                other = _scaled_logits(reference[0][rows], reference[1], scale, dtype)
                torch.amax(other, 1, out=other_top[rows])
                other.sub_(other_top[rows, None])
                # Both relative to their largest, so that equal policies have a KL of exactly 0.
                torch.linalg.vecdot(probs, z.sub_(other), out=other_dot[rows])
                torch.sum(other.exp_(), 1, out=other_total[rows])
            if single:
                probs.div_(total[:, None])
        log_total = total.log()
        norm = log_total + top
        # H = log sum_j exp(z_j) - sum_j p_j z_j, with z relative to the largest.
        entropy = log_total - dot / total
        values = [of_action - norm, entropy]
        kl = other_norm = None
        if reference:
            log_other = other_total.log()
            other_norm = log_other + other_top
            kl = other_dot / total - (log_total - log_other)
            values.append(kl)
        kept = probs if single else None
        ctx.save_for_backward(hidden, factor, actions, norm, entropy, kept, kl, other_norm, *reference)
        ctx.scale = scale
        ctx.size = size
        ctx.weight_dtype = weight.dtype
        ctx.set_materialize_grads(False)
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None, of_kl: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        hidden, factor, actions, norm, entropy, kept, kl, other_norm, *reference = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(factor, dtype=norm.dtype) if ctx.needs_input_grad[1] else None
        # The factor of each token's -p_j.
        mass = torch.zeros_like(norm) if of_log_probs is None else of_log_probs
        if of_entropy is not None:
            mass = mass + entropy * of_entropy
        for start in range(0, len(hidden), ctx.size):
            rows = slice(start, start + ctx.size)
            # The probabilities, recomputed if the forward pass had several chunks.
            if kept is None:
                logits = _scaled_logits(hidden[rows], factor, ctx.scale, norm.dtype)
                probs = logits.sub_(norm[rows, None]).exp_()
            else:
                probs = kept
            # The gradient of the logits: -p_j times the mass, with a term for each value.
            if of_entropy is not None:
                gradient = torch.special.entr(probs).mul_(of_entropy[rows, None])
                gradient.addcmul_(probs, mass[rows, None], value=-1)
            else:
                gradient = probs * -mass[rows, None]
            if of_kl is not None:
                assert kl is not None and other_norm is not None
                other = _scaled_logits(reference[0][rows], reference[1], ctx.scale, norm.dtype)
                log_q = other.sub_(other_norm[rows, None])
                # entr(p) = -p log p is 0 where p underflows.
                divergence = torch.special.entr(probs).addcmul_(probs, log_q.add_(kl[rows, None]))
                gradient.addcmul_(divergence, of_kl[rows, None], value=-1)
            if of_log_probs is not None:
                gradient.scatter_add_(1, actions[rows, None], of_log_probs[rows, None])
            # The gradients of the product's factors.
            if ctx.scale != 1:
                gradient.mul_(ctx.scale)
            gradient = gradient.to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[rows] = faster_linear(gradient, factor.T)
            if of_weight is not None:
                of_weight.addmm_(gradient.T.to(norm.dtype), hidden[rows].to(norm.dtype))
        of_weight = None if of_weight is None else of_weight.to(ctx.weight_dtype)
        return of_hidden, of_weight, None, None, None, None, *(None for _ in reference)


def _scaled_logits(hidden: Tensor, weight: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    if hidden.is_cuda and hidden.dtype != dtype:
        logits = torch.mm(hidden, weight.T, out_dtype=dtype)  # not rounded to bfloat16 in between
    else:
        logits = faster_linear(hidden, weight).to(dtype)
    if scale != 1:
        logits.mul_(scale)
    return logits
