"""A computation for texts up to a length, and another for longer texts."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Examples, read_steps
from lightning_cgrpo.policies.computations.computation import Computation, LanguageModel
from lightning_cgrpo.policies.computations.single import UncachedRows
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch, SingleContinuation
from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.shared_prefix.support import length_limit


@dataclass(frozen=True)
class ByLength(Computation):
    """For models that compute all texts of a pass differently once the longest exceeds `length_limit`.

    Passes with a longer text compute each answer alone, so that no text depends on another text. Each sampled token
    reads the whole text again, because cached keys and values are those of an earlier length.

    Args:
        within: computation of texts up to the limit.
    """

    within: Computation

    @property
    def shares_prompts(self) -> bool:  # type: ignore[override]
        return self.within.shares_prompts

    @property
    def pads(self) -> bool:  # type: ignore[override]
        return self.within.pads

    @property
    def caches(self) -> bool:  # type: ignore[override]
        return self.within.caches

    def log_probs(
        self, policy: LanguageModel, examples: Examples, reference: PolicyOutput | None = None
    ) -> PolicyOutput:
        group, mask, prompt_mask = on_host(examples.group, examples.mask, examples.shared["prompt_mask"])
        lengths = prompt_mask.sum(-1)[group] + read_steps(mask).sum(-1)
        # A pass doesn't read an answer's last token.
        if len(lengths) and int(lengths.max()) - 1 > _longest_text(policy):
            return UncachedRows().log_probs(policy, examples, reference)
        return self.within.log_probs(policy, examples, reference)

    def continuation(self, policy: LanguageModel, prompts: PromptBatch) -> Continuation:
        if int(prompts.lengths.max()) + prompts.longest - 1 <= _longest_text(policy):
            return self.within.continuation(policy, prompts)
        continuation = SingleContinuation(policy, prompts)
        for part in continuation.parts:
            part.cache = None
        return continuation


def _longest_text(policy: LanguageModel) -> float:
    limit = length_limit(policy.network.config)
    return float("inf") if limit is None else limit
