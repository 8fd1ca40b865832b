"""Importance ratios for answers that another engine sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Examples


@dataclass(frozen=True)
class SamplingCorrection:
    """Ratios pi_old / pi_sampling that multiply the surrogate, because an engine's probabilities differ.

    The default truncates each step's ratio (Yao et al., 2025). TRL's four modes are combinations of `masked` and
    `sequence`.

    Args:
        high: largest ratio; None for no bound.
        low: smallest ratio.
        masked: ratios out of bounds become 0 instead of the bound.
        sequence: one ratio for each answer.
    """

    high: float | None = 2.0
    low: float = 0.0
    masked: bool = False
    sequence: bool = False

    def __post_init__(self) -> None:
        expect(self.high is None or self.high >= 1, "high", "at least 1", self.high)
        expect(0 <= self.low <= 1, "low", "between 0 and 1", self.low)

    def bounded(self, ratios: Tensor) -> Tensor:
        """Ratios within the bounds, or 0, of any shape."""
        if not self.masked:
            return ratios.clamp(self.low, self.high)
        return torch.where(self.outside(ratios), 0, ratios)

    def outside(self, ratios: Tensor) -> Tensor:
        """True for ratios out of bounds, of any shape."""
        high = torch.inf if self.high is None else self.high
        return (ratios > high) | (ratios < self.low)

    def ratios(self, old_log_probs: Tensor, sampling_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Ratios before the bounds, without gradient, ``[N]`` or ``[N, T]`` as all tensors.

        A step whose engine's log-probability is not finite has ratio 1; so has a step outside the mask.
        """
        reported = mask & sampling_log_probs.isfinite()
        log_ratio = torch.where(reported, old_log_probs - sampling_log_probs, 0).detach()
        if self.sequence and log_ratio.dim() > 1:
            # All steps of an answer have the ratio of the whole answer.
            log_ratio = torch.where(mask, log_ratio.sum(-1, keepdim=True), 0)  # [N, T]
        return log_ratio.exp()


def sampling_sums(examples: Examples, correction: SamplingCorrection | None) -> dict[str, Tensor]:
    """Sums over steps that compare a sampling engine's probabilities with the policy's; {} if none were reported.

    The sums are the number of compared ``steps``, of steps without a finite log-probability (``faults``), of ratios,
    of ratios out of bounds (``capped``), and of absolute differences (``log_prob_gap``).

    Args:
        examples: after the optimizer steps, with the log-probabilities of the policy that sampled.
    """
    reported = examples.targets.get("sampling_log_probs")
    if reported is None:
        return {}
    compared = examples.mask & reported.isfinite()
    old = examples.targets["old_log_probs"]
    correction = correction or SamplingCorrection(high=None)
    ratio = correction.ratios(old, reported, examples.mask)[compared]  # [compared steps]
    return {
        "steps": compared.sum(),
        "faults": (examples.mask & ~compared).sum(),
        "ratio": ratio.sum(),
        "capped": correction.outside(ratio).sum(),
        "log_prob_gap": (old - reported)[compared].abs().sum(),
    }
