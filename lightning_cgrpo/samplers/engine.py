"""Interface of engines that generate text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from lightning_cgrpo.core.errors import expect

if TYPE_CHECKING:
    from lightning_cgrpo.core.rollout import Rollouts
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy


class Replies(Protocol):
    """The other side of conversations."""

    def __call__(self, rows: Sequence[int], turns: Sequence[list[int]], room: int) -> Sequence[list[int]]:
        """Answer R turns with the world's tokens, up to the point where the policy continues.

        Args:
            rows: R numbers of answers, in [0, B G).
            turns: the policy's tokens since the last reply, with the stop token.
            room: most tokens of a reply; the policy needs one more.

        Returns:
            R replies; an empty reply ends the answer.
        """


@dataclass(frozen=True)
class Sampling:
    """Arguments of `GenerationSampler` for the engine; a server ignores `batch_size`."""

    max_new_tokens: int
    min_new_tokens: int = 0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        longest, least = self.max_new_tokens, self.min_new_tokens
        expect(longest >= 1, "max_new_tokens", "at least 1", longest)
        expect(least >= 0, "min_new_tokens", "at least 0", least)
        expect(self.top_k is None or self.top_k >= 1, "top_k", "at least 1", self.top_k)
        expect(least <= longest, "min_new_tokens", f"at most max_new_tokens, {longest}", least)
        expect(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        expect(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        expect(self.batch_size is None or self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        expect(self.repetition_penalty > 0, "repetition_penalty", "greater than 0", self.repetition_penalty)


class RolloutEngine(ABC):
    """Continues prompts."""

    @abstractmethod
    def generate(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        reply: Replies | None = None,
    ) -> Rollouts:
        """Answer every prompt `group_size` times.

        Args:
            inputs: of B prompts, from `read_prompts`, on the CPU.
            draws: ``[B, G, T]`` float64 in [0, 1), the only randomness; T is `max_new_tokens`.
            reply: may continue an answer after a stop token.

        Returns:
            Answers with their stop tokens, and the inputs, on the policy's device. ``info["truncated"]`` ``[B, G]``
            marks answers without a stop token; `sampling_log_probs` is None if the loss need not weigh by them.

        Raises:
            FloatingPointError: the policy's logits are not finite.
            UserError: the engine cannot read the inputs, or cannot continue answers.
        """
