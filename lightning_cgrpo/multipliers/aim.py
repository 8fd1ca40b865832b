"""Tighter thresholds in training, so that the policy passes a test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_cgrpo.errors import UserError, expect


class AimForTest:
    """Tightens thresholds by the error of measurement of a test, so that the test's rates meet the given thresholds.

    A policy whose true rate equals its threshold d fails every second test. Of n = `prompts` answers, at most
    floor(n d) may violate a constraint. The aim is the highest rate p at which they do with probability c:

        P(Binomial(n, p) <= floor(n d)) = c,    c = 1 - (1 - confidence) / K

    K is the number of constraints, so all pass together with `confidence` (Bonferroni). This is the lower limit of the
    exact binomial interval (Clopper & Pearson, 1934) around (floor(n d) + 1) / n, and at most d.

    The cost is reward: the policy keeps the tighter thresholds. A larger test costs less, because the margin is about
    z sqrt(d (1 - d) / n). The margin covers the test's error alone: a rate that still oscillates when training ends
    needs a smaller learning rate at the end.

    Args:
        prompts: answers in the test, one for each prompt. Rates over steps count as one answer for each prompt.
        confidence: probability that all constraints pass, in (0.5, 1).
        subsets: answers in the test to the prompts of a subset, by ``COLUMN=VALUE``; fewer answers ask for a larger
            margin.

    Raises:
        UserError: a constraint is on a subset that `subsets` leaves out.

    Example:
        >>> import torch
        >>> AimForTest(prompts=1000)(torch.tensor([0.15]))
        tensor([0.1327])
    """

    def __init__(self, prompts: int = 1000, confidence: float = 0.95, subsets: dict[str, int] | None = None) -> None:
        expect(prompts >= 1, "prompts", "at least 1", prompts)
        expect(0.5 < confidence < 1, "confidence", "in (0.5, 1)", confidence)
        self.prompts, self.confidence, self.subsets = prompts, confidence, dict(subsets or {})
        for name, count in self.subsets.items():
            expect(1 <= count <= prompts, f"subsets['{name}']", f"from 1 to {prompts}", count)

    def __call__(self, thresholds: Tensor, subsets: Sequence[Mapping[str, Any] | None] | None = None) -> Tensor:
        """Aims ``[K]`` from thresholds ``[K]``, both rates of violation.

        Args:
            subsets: column and value of each constraint's subset; None for all prompts.
        """
        from scipy.special import betaincinv

        missed = (1 - self.confidence) / max(len(thresholds), 1)
        aims = []
        for threshold, subset in zip(thresholds.tolist(), subsets or [None] * len(thresholds), strict=True):
            prompts = self._answers(subset)
            # The tolerance keeps 0.29 * 100 at 29.
            allowed = math.floor(prompts * threshold + 1e-9)
            aim = float(betaincinv(allowed + 1, prompts - allowed, missed)) if allowed < prompts else threshold
            aims.append(min(aim, threshold))
        return thresholds.new_tensor(aims)

    def _answers(self, subset: Mapping[str, Any] | None) -> int:
        """Answers in the test to the prompts of a subset."""
        if subset is None:
            return self.prompts
        [(column, value)] = subset.items()
        if f"{column}={value}" not in self.subsets:
            raise UserError(
                f"Expected subsets of AimForTest to have the number of test prompts with {column}={value}, because "
                f"fewer prompts need a larger margin, but got {list(self.subsets)}, try subsets: {{{column}={value}: "
                f"{max(self.prompts // 4, 1)}}}."
            )
        return self.subsets[f"{column}={value}"]

    def __str__(self) -> str:
        return (
            f"of {self.prompts:,} prompts meets all thresholds in {self.confidence:.0%} of tests. The reward is that "
            "of the tighter thresholds; a larger test needs less"
        )
