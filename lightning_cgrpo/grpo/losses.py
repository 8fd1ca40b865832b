"""The GRPO loss: surrogate, KL to a reference, entropy, and aggregation over steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum, world
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.grpo.surrogates import Clipped, Surrogate

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]

CLIPPING = ("clip_low", "clip_high", "clip_limit")


def aggregation_weights(
    mask: Tensor, aggregation: Aggregation, max_length: int | None = None, totals: Tensor | None = None
) -> Tensor:
    """Weights of the steps ``[B, G, T]`` in the loss, a weighted sum over all answers.

    With N answers on all processes, answer i of length L_i:

    - ``sequence_sum``: 1/N, the paper's equation
    - ``sequence_mean``: 1/(N L_i), published GRPO (Shao et al., 2024)
    - ``token_mean``: 1/sum(L), DAPO (Yu et al., 2025); for single-step units the mean of PPO code
    - ``constant``: 1/(N max_length), Dr. GRPO (Liu et al., 2025)

    N includes answers of length 0. `max_length` is T by default. Weights are times the number of processes, because
    gradients are averaged.

    Args:
        totals: answers and steps ``[2]`` of all processes, from `count_units`; by default summed here, which is
            collective.
    """
    lengths_BG = mask.sum(-1).double()
    if totals is None:
        answers_here = torch.ones_like(lengths_BG).sum()
        totals = all_sum(torch.stack([answers_here, lengths_BG.sum()]))
    answers, steps = totals.unbind()
    if aggregation == "token_mean":
        per_answer_BG = torch.ones_like(lengths_BG) / steps.clamp(min=1)
    elif aggregation == "sequence_mean":
        per_answer_BG = 1 / (answers * lengths_BG.clamp(min=1))
    elif aggregation == "sequence_sum":
        per_answer_BG = torch.ones_like(lengths_BG) / answers
    elif aggregation == "constant":
        per_answer_BG = torch.ones_like(lengths_BG) / (answers * (max_length or mask.shape[-1]))
    else:
        raise ValueError(
            f"Expected aggregation to be token_mean, sequence_mean, sequence_sum or constant, but got '{aggregation}'."
        )
    _, processes = world()
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    weights_BG = (per_answer_BG * processes).to(dtype)
    return weights_BG[..., None] * mask


@dataclass(frozen=True)
class LossOptions:
    """Terms of `grpo_loss`.

    Args:
        clip_low: ratios are clipped to [1 - clip_low, 1 + clip_high].
        clip_high: by default `clip_low`.
        clip_limit: largest ratio for negative advantages, see `Clipped`.
        surrogate: `CISPO` or `SAPO`, instead of `Clipped`.
        sequence_ratio: one ratio per answer, a geometric mean (GSPO, Zheng et al., 2025, with clip_low 3e-4 and
            clip_high 4e-4).
        kl_weight: weight (beta) of the KL to the reference; 0 needs no reference model.
        correct_kl: multiply the KL by the ratio, for an unbiased gradient (DeepSeek-V3.2, 2025).
        exact_kl: `kl_weight` weighs the KL over all actions at every step, instead of k3.
    """

    clip_low: float = 0.2
    clip_high: float | None = None
    clip_limit: float | None = None
    surrogate: Surrogate | None = None
    sequence_ratio: bool = False
    kl_weight: float = 0.0
    correct_kl: bool = False
    exact_kl: bool = False
    entropy_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high", "kl_weight", "entropy_weight"):
            value = getattr(self, name)
            expect(value is None or value >= 0, name, "at least 0", value)
        if self.exact_kl and self.correct_kl:
            raise ValueError("Expected correct_kl: false with exact_kl, whose gradient needs no correction.")
        expect(self.clip_low <= 1, "clip_low", "a distance from the ratio 1, at most 1", self.clip_low)
        if self.clip_low >= 0.5 and self.clip_high is not None and self.clip_high >= 1:
            raise ValueError(
                "Expected arguments `clip_low` and `clip_high` to be distances from the ratio 1, but got "
                f"{self.clip_low:g} and {self.clip_high:g}, try {1 - self.clip_low:g} and {self.clip_high - 1:g}."
            )
        _, clip_high = self.clip
        highest_ratio = 1 + clip_high
        wanted = f"greater than 1 + clip_high, {highest_ratio:g}, since it is a ratio"
        expect(self.clip_limit is None or self.clip_limit > highest_ratio, "clip_limit", wanted, self.clip_limit)
        ignored = [name for name in CLIPPING if getattr(self, name) != getattr(LossOptions, name)]
        if self.surrogate is not None and ignored:
            raise ValueError(
                f"Expected argument `{ignored[0]}` to be left alone, since {type(self.surrogate).__name__} does not "
                "clip by it, try the surrogate's own arguments, or surrogate: null."
            )

    @property
    def clip(self) -> tuple[float, float]:
        """Distances from the ratio 1, below and above, at which ratios are clipped."""
        high = self.clip_low if self.clip_high is None else self.clip_high
        return self.clip_low, high

    def chosen_surrogate(self) -> Surrogate:
        """The surrogate of the options, `Clipped` by default."""
        if self.surrogate is not None:
            return self.surrogate
        low, high = self.clip
        return Clipped(low, high, self.clip_limit)


@dataclass(frozen=True)
class LossTerms:
    """The loss and its diagnostics: scalars, summed over steps with `aggregation_weights`."""

    loss: Tensor
    kl: Tensor
    entropy: Tensor
    clip_fraction: Tensor


NO_PENALTIES: Mapping[str, Tensor] = MappingProxyType({})


def k3(distance: Tensor) -> Tensor:
    """exp(d) - d - 1, whose mean over samples of p is KL(p || q), with d = log q - log p (Schulman, 2020)."""
    return distance.exp() - distance - 1


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    options: LossOptions = LossOptions(),
    *,
    sampling_ratios: Tensor | None = None,
    reference_log_probs: Tensor | None = None,
    entropy: Tensor | None = None,
    exact_kl: Tensor | None = None,
    penalties: Mapping[str, Tensor] = NO_PENALTIES,
) -> LossTerms:
    """Surrogate with KL and entropy terms (paper, section 3, eq. J_GRPO), to be minimized.

    -sum w [surrogate(r, A) - kl_weight KL + entropy_weight H] with r = exp(log_probs - old_log_probs) and KL by the k3
    estimator exp(d) - d - 1, d = reference - log_probs (Schulman, 2020). `sampling_ratios` multiply the surrogate.

    At ratio 1, k3's expected gradient is that of KL(reference || policy). With `correct_kl`, r k3 has value and
    gradient of KL(policy || reference). So has `exact_kl`, without noise: `options.exact_kl` takes it for kl_weight.

    Args:
        log_probs: of the actions under the trained policy, ``[N]`` or ``[N, T]`` as all tensors.
        weights: from `aggregation_weights`; 0 for padding.
        exact_kl: KL(policy || reference) over all actions; needed for `options.exact_kl` and a penalty of ``kl``.
        penalties: coefficients of ``kl`` (of `exact_kl`) and ``entropy`` (subtracted from entropy_weight), scalars;
            from `Objective.penalties`.
    """
    # Log-ratios to the policy that sampled; padding has 0, so that no value of it enters.
    valid = weights > 0
    log_ratio = torch.where(valid, log_probs - old_log_probs, 0)
    advantages = torch.where(valid, advantages, 0)
    if options.sequence_ratio:
        # One ratio per answer: the geometric mean of its steps' ratios.
        mean = log_ratio.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)  # [N, 1]
        log_ratio = torch.where(valid, mean, 0)  # [N, T]
    # The surrogate of each step, corrected for the engine that sampled.
    surrogate = options.chosen_surrogate()
    total, bounded = surrogate(log_ratio, advantages)
    if sampling_ratios is not None:
        total = total * torch.where(valid, sampling_ratios, 0)
    zero = torch.zeros((), dtype=log_probs.dtype, device=log_probs.device)
    # The KL to the reference, and the penalty of a constraint on it.
    kl_sum = zero
    if reference_log_probs is not None:
        sampled_kl = _sampled_kl(log_probs, old_log_probs, reference_log_probs, log_ratio, valid, options)
        all_actions_kl = sampled_kl if exact_kl is None else torch.where(valid, exact_kl, 0)
        kl = all_actions_kl if options.exact_kl else sampled_kl
        kl_sum = (weights * kl).sum().detach()
        if options.kl_weight:
            total = total - options.kl_weight * kl
        if "kl" in penalties:
            total = total - penalties["kl"] * all_actions_kl
    # The entropy bonus, and the penalty of a constraint on the entropy.
    entropy_sum = zero
    if entropy is not None:
        bonus = torch.where(valid, entropy, 0)
        entropy_sum = (weights * bonus).sum().detach()
        if options.entropy_weight:
            total = total + options.entropy_weight * bonus
        if "entropy" in penalties:
            total = total - penalties["entropy"] * bonus
    # The total is maximized, the loss minimized.
    return LossTerms(-(weights * total).sum(), kl_sum, entropy_sum, clip_fraction=(weights * bounded).sum())


def _sampled_kl(
    log_probs: Tensor,
    old_log_probs: Tensor,
    reference_log_probs: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    options: LossOptions,
) -> Tensor:
    """The KL to the reference from the sampled actions, by k3; with `correct_kl`, times the ratio."""
    distance = torch.where(valid, reference_log_probs - log_probs, 0)
    if not options.correct_kl:
        return k3(distance)
    if options.sequence_ratio:
        return k3(distance) * log_ratio.exp()
    # r k3 = exp(reference - old) - r (d + 1), whose gradient -r d has no two terms of exp(d) that cancel.
    constant = torch.where(valid, reference_log_probs - old_log_probs, 0).exp()
    return constant - log_ratio.exp() * (distance + 1)
