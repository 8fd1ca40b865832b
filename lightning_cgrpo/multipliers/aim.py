"""Tighter thresholds in training, so that the policy passes a test."""

from __future__ import annotations

import math

from torch import Tensor

from lightning_cgrpo.errors import expect


class AimForTest:
    """Tightens thresholds by the error of measurement of a test, so that the test's rates meet the given thresholds.

    A policy whose true rate equals its threshold d fails every second test. Of n = `prompts` answers, at most
    floor(n d) may violate a constraint. The aim is the highest rate p at which they do with probability c:

        P(Binomial(n, p) <= floor(n d)) = c,    c = 1 - (1 - confidence) / K

    K is the number of constraints, so all pass together with `confidence` (Bonferroni). This is the lower limit of the
    exact binomial interval (Clopper & Pearson, 1934) around (floor(n d) + 1) / n. For d < 1 / n, where
    no violation may be seen, the aim can be above d.

    The cost is reward: the policy keeps the tighter thresholds. A larger test costs less, because the margin is about
    z sqrt(d (1 - d) / n). The margin covers the test's error alone: a rate that still oscillates when training ends
    needs a smaller learning rate at the end.

    A constraint on a subset of the prompts gets the margin of all prompts, which is too small for its fewer prompts.

    Args:
        prompts: answers in the test, one for each prompt. Rates over steps count as one answer for each prompt.
        confidence: probability that all constraints pass, in (0.5, 1).

    Example:
        >>> import torch
        >>> AimForTest(prompts=1000)(torch.tensor([0.15]))
        tensor([0.1327])
    """

    def __init__(self, prompts: int = 1000, confidence: float = 0.95) -> None:
        expect(prompts >= 1, "prompts", "at least 1", prompts)
        expect(0.5 < confidence < 1, "confidence", "in (0.5, 1)", confidence)
        self.prompts, self.confidence = prompts, confidence

    def __call__(self, thresholds: Tensor) -> Tensor:
        """Aims ``[K]`` from thresholds ``[K]``, both rates of violation."""
        from scipy.stats import beta

        missed = (1 - self.confidence) / max(len(thresholds), 1)
        aims = []
        for threshold in thresholds.tolist():
            # The tolerance keeps 0.29 * 100 at 29.
            allowed = math.floor(self.prompts * threshold + 1e-9)
            aims.append(beta.ppf(missed, allowed + 1, self.prompts - allowed) if allowed < self.prompts else threshold)
        return thresholds.new_tensor(aims)

    def __str__(self) -> str:
        return (
            f"of {self.prompts:,} prompts meets all thresholds in {self.confidence:.0%} of tests. Subsets have fewer "
            "prompts, and a larger margin would be theirs. The reward is that of the tighter thresholds; a larger test "
            "needs less"
        )
