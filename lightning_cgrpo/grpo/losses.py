"""The GRPO loss on tensors: surrogate, KL to a reference, entropy, and how steps are aggregated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.grpo.surrogates import Clipped, Surrogate

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]


def aggregation_weights(mask: Tensor, aggregation: Aggregation, max_length: int | None = None) -> Tensor:
    """Weights of the steps in the loss: the loss is the weighted sum over the steps of all answers.

    With N answers on all processes, answer i of length L_i:

    - ``sequence_sum``: 1/N, the paper's equation (a sum over steps, divided by the number of answers)
    - ``sequence_mean``: 1/(N L_i), GRPO as published (Shao et al., 2024)
    - ``token_mean``: 1/sum(L), DAPO (Yu et al., 2025); for single-step units the mean of PPO code
    - ``constant``: 1/(N max_length), Dr. GRPO (Liu et al., 2025)

    N counts answers of length 0, too: in all but ``token_mean``, leaving an answer out moves no weight to the others.

    Args:
        mask: ``[B, G, T]`` bool, this process's steps that have a loss.
        max_length: the length that ``constant`` divides by, by default T.

    Returns:
        ``[B, G, T]``, scaled by the number of processes, over which gradients are averaged.
    """
    lengths = mask.sum(-1).double()
    sequences, tokens = all_sum(torch.stack([torch.ones_like(lengths).sum(), lengths.sum()])).unbind()
    if aggregation == "token_mean":
        per_sequence = torch.ones_like(lengths) / tokens.clamp(min=1)
    elif aggregation == "sequence_mean":
        per_sequence = 1 / (sequences * lengths.clamp(min=1))
    elif aggregation == "sequence_sum":
        per_sequence = torch.ones_like(lengths) / sequences
    elif aggregation == "constant":
        per_sequence = torch.ones_like(lengths) / (sequences * (max_length or mask.shape[-1]))
    else:
        raise ValueError(
            f"Expected aggregation to be token_mean, sequence_mean, sequence_sum or constant, but got '{aggregation}'."
        )
    weights = (per_sequence * world()[1]).to(torch.promote_types(torch.get_default_dtype(), torch.float32))
    return weights[..., None] * mask


@dataclass(frozen=True)
class LossTerms:
    """Named parts of a loss, and sums for the diagnostics (all scalars)."""

    loss: Tensor
    kl: Tensor
    entropy: Tensor
    clip_fraction: Tensor


def sampling_ratio(old_log_probs: Tensor, sampling_log_probs: Tensor, cap: float) -> Tensor:
    """Truncated importance ratios min(pi_old / pi_sampling, cap) (Yao et al., 2025), without gradient, ``[...]``.

    Where another engine sampled than the one that trains, their probabilities differ, and the loss of a step is
    multiplied by this. Where the engine reports none that is finite, the ratio is 1.

    Args:
        old_log_probs: ``[...]`` of the actions taken, under the policy that sampled, as it is trained.
        sampling_log_probs: ``[...]`` of the same, as the engine reports them.
        cap: the largest ratio.
    """
    difference = (old_log_probs - sampling_log_probs).detach()
    return torch.where(sampling_log_probs.isfinite(), difference.exp(), 1).clamp(max=cap)


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    surrogate: Surrogate | None = None,
    sequence_ratio: bool = False,
    sampling_ratios: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    kl_weight: float = 0.0,
    correct_kl: bool = False,
    entropy: Tensor | None = None,
    entropy_weight: float = 0.0,
) -> LossTerms:
    """Surrogate with KL and entropy terms (paper, section 3, eq. J_GRPO), to be minimized.

    -sum w [surrogate(r, A) - kl_weight KL + entropy_weight H] with r = exp(log_probs - old_log_probs) and KL by the k3
    estimator exp(d) - d - 1, d = reference - log_probs (Schulman, 2020), which is non-negative and unbiased under the
    current policy.

    Unbiased is the value: the gradient of k3 is, at ratio 1, in expectation that of KL(reference || policy). With
    `correct_kl` the term is r KL (DeepSeek-V3.2, 2025), value and gradient of which are those of
    KL(policy || reference), whatever the ratio.

    Args:
        log_probs: of the actions taken, under the policy being trained, any shape ``[...]``; the others are alike.
        weights: from `aggregation_weights`; 0 for padding, whose other entries are then ignored.
        surrogate: what is maximized; by default PPO's with the bounds 0.8 and 1.2.
        sequence_ratio: r of an answer, the geometric mean over its steps (the last dimension) with a weight, in the
            place of each step's own (GSPO, Zheng et al., 2025), in the surrogate and in `correct_kl`.
        sampling_ratios: factors of the surrogate, see `sampling_ratio`.
        entropy: of the policy at each step; None leaves the term out.

    Returns:
        `LossTerms`, each a weighted sum like the loss (so a mean where the weights sum to 1).
    """
    valid = weights > 0
    log_ratio = torch.where(valid, log_probs - old_log_probs, 0)
    advantages = torch.where(valid, advantages, 0)
    if sequence_ratio:
        mean = log_ratio.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = torch.where(valid, mean, 0)
    total, bounded = (surrogate or Clipped())(log_ratio, advantages)
    if sampling_ratios is not None:
        total = total * torch.where(valid, sampling_ratios, 0)
    zero = torch.zeros((), dtype=log_probs.dtype, device=log_probs.device)
    kl_sum, entropy_sum = zero, zero
    if reference_log_probs is not None:
        distance = torch.where(valid, reference_log_probs - log_probs, 0)
        kl = distance.exp() - distance - 1
        if correct_kl:
            kl = kl * log_ratio.exp()
        kl_sum = (weights * kl).sum().detach()
        if kl_weight:
            total = total - kl_weight * kl
    if entropy is not None:
        bonus = torch.where(valid, entropy, 0)
        entropy_sum = (weights * bonus).sum().detach()
        if entropy_weight:
            total = total + entropy_weight * bonus
    clip_fraction = (weights * bounded).sum()
    return LossTerms(-(weights * total).sum(), kl_sum, entropy_sum, clip_fraction)
