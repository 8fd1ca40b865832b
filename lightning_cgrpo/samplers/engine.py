"""Interface of engines that generate text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.settings.objects import Stated

if TYPE_CHECKING:
    from lightning_cgrpo.core.rollout import Rollouts
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy


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
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        longest = self.max_new_tokens
        least = self.min_new_tokens
        expect(longest >= 1, "max_new_tokens", "at least 1", longest)
        expect(least >= 0, "min_new_tokens", "at least 0", least)
        expect(self.top_k is None or self.top_k >= 1, "top_k", "at least 1", self.top_k)
        expect(least <= longest, "min_new_tokens", f"at most max_new_tokens, {longest}", least)
        expect(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        expect(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        expect(self.batch_size is None or self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        expect(self.repetition_penalty > 0, "repetition_penalty", "greater than 0", self.repetition_penalty)
        expect(all(self.stop), "stop", "strings of at least one letter", list(self.stop))


class RolloutEngine(Stated, ABC):
    """Continues prompts. An engine knows nothing of the worlds that answer the policy.

    Attributes:
        reads_weights: `generate` calls passes of the policy; otherwise a sharded policy stays in shards.
        memory: most bytes of answers that are generated at once, chosen by the engine at the first rollout; None for
            no limit. Checkpoints keep it, so that a resume has the same batches.
    """

    reads_weights: bool = True
    memory: int | None = None

    def session(self, policy: CausalLMPolicy) -> AbstractContextManager[None]:
        """Context of all calls of `generate` in one rollout, in which the policy's weights do not change.

        Every process enters it once per rollout, and may call `generate` any number of times inside.
        """
        return nullcontext()

    def release(self, policy: CausalLMPolicy) -> None:
        """Give back memory that training needs; called before each update's training passes. Collective."""

    @abstractmethod
    def generate(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        limits: Tensor | None = None,
    ) -> Rollouts:
        """Answer every prompt `group_size` times.

        Args:
            inputs: of B prompts, from `read_prompts`, on the CPU.
            draws: ``[B, G, T]`` float64 in [0, 1), the only randomness; T is `max_new_tokens`.
            limits: ``[B]`` int64 in [1, T] on the CPU, most tokens of each prompt's answers; by default T.

        Returns:
            Answers up to their ends (`Ends`), and the inputs, on the policy's device. ``info["truncated"]`` ``[B, G]``
            marks answers without an end; `sampling_log_probs` is None if the loss need not weigh by them.

        Raises:
            FloatingPointError: the policy's logits are not finite.
            UserError: the engine cannot read the inputs.
        """
