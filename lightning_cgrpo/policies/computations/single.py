"""A pass for each answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import pad

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.policies.computations.computation import LanguageModel
from lightning_cgrpo.policies.computations.padded import AnswerRows, PaddedRows
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch, SingleContinuation


@dataclass(frozen=True)
class SingleRows(PaddedRows):
    """Each answer and its prompt in a pass of their own, without padding."""

    pads = False

    loss: ClassVar[str] = "Each answer is computed in a pass of its own"

    def rows(self, policy: LanguageModel, examples: Examples, states: bool) -> AnswerRows:
        if len(examples) == 1:
            return super().rows(policy, examples, states)
        passes = []
        for row in range(len(examples)):
            passes.append(super().rows(policy, examples[row : row + 1], states))
        # The rows are padded to the longest answer after their passes.
        steps = max(part.tokens.shape[1] for part in passes)
        outputs = []
        tokens = []
        for part in passes:
            missing = steps - part.tokens.shape[1]
            outputs.append(pad(part.outputs, (0, 0, 0, missing)))
            tokens.append(pad(part.tokens, (0, missing)))
        (mask,) = on_host(examples.mask)
        return AnswerRows(torch.cat(outputs), torch.cat(tokens), mask)

    def continuation(self, policy: LanguageModel, prompts: PromptBatch) -> Continuation:
        return SingleContinuation(policy, prompts)


@dataclass(frozen=True)
class UncachedRows(SingleRows):
    """`SingleRows`, where each sampled token reads the whole text again."""

    caches = False

    loss: ClassVar[str] = "Each answer is computed in a pass of its own, and each sampled token reads the whole text"
