"""The narrow surface between sampling text and whatever generates it: this process's own weights, or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy


@dataclass(frozen=True)
class Sampling:
    """How long answers get, and from which tokens each is chosen. The temperature and the stop tokens are the policy's.

    Args:
        max_new_tokens: the longest answer, its stop token included.
        min_new_tokens: before the answer has this many tokens no stop token is chosen.
        top_p: choose from the nucleus alone, the likeliest tokens that together have this probability (Holtzman et
            al., 2020).
        top_k: choose from the k likeliest tokens alone (Fan et al., 2018).
        min_p: choose only tokens that have this share of the likeliest one's probability (Nguyen et al., 2024).
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_new_tokens", self.max_new_tokens, 1),
            ("min_new_tokens", self.min_new_tokens, 0),
            ("top_k", self.top_k, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"Expected argument `{name}` to be at least {least}, but got {value}.")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"Expected argument `min_new_tokens` to be at most max_new_tokens, {self.max_new_tokens}, but got "
                f"{self.min_new_tokens}."
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Expected argument `top_p` to be in (0, 1], but got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"Expected argument `min_p` to be in [0, 1], but got {self.min_p}.")


@dataclass(frozen=True)
class Completions:
    """G answers to each of B prompts, as tokens.

    Args:
        tokens: ``[B, G, T]`` int64 with T = `max_new_tokens`; a stop token is the last one of its answer.
        mask: ``[B, G, T]`` bool, which of them exist.
        truncated: ``[B, G]`` bool, answers that no stop token ended.
        log_probs: ``[B, G, T]`` of the tokens under what they were sampled from, where that isn't the policy as this
            process computes it; otherwise None.
    """

    tokens: Tensor
    mask: Tensor
    truncated: Tensor
    log_probs: Tensor | None = None


class RolloutEngine(ABC):
    """Continues prompts."""

    @abstractmethod
    def generate(
        self,
        policy: CausalLMPolicy,
        prompts: list[list[int]],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        inputs: Mapping[str, Tensor],
    ) -> Completions:
        """Answer every prompt `group_size` times with the policy as it is now.

        Args:
            policy: whose weights, temperature and stop tokens count; on its device the results are.
            prompts: B lists of tokens.
            draws: ``[B, G, T]`` float64 in [0, 1): the only randomness. An engine that chooses tokens itself uses one
                per token; another one makes a seed of the first.
            inputs: tensors ``[B, ...]``, what else the policy reads of the prompts.

        Raises:
            FloatingPointError: if the policy's logits are not finite.
            UserError: if there are inputs that the engine can't read.
        """
