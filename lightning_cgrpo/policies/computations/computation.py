"""Interface of a language model's computations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch
from lightning_cgrpo.policies.padded_prompts import PaddedPrompts
from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.policies.shared_prefix.attention import Attend
from lightning_cgrpo.policies.shared_prefix.log_probs import linear_log_probs


class LanguageModel(Protocol):
    """The parts of a `CausalLMPolicy` that computations read; the policy imports this file."""

    temperature: float
    gradient_checkpointing: bool

    @property
    def network(self) -> Any: ...

    @property
    def output_weight(self) -> Tensor: ...

    def prompt_positions(self, ids: Tensor, lengths: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None: ...

    def row_positions(self, ids: Tensor, mask: Tensor, prompts: PaddedPrompts | None) -> Tensor: ...

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, inputs: Mapping[str, Tensor]) -> Tensor: ...

    def logits(
        self,
        ids: Tensor,
        mask: Tensor,
        keep: int,
        cache: Any = None,
        positions: Tensor | None = None,
        prompts: PaddedPrompts | None = None,
        states: bool = False,
    ) -> Tensor: ...


class Computation(ABC):
    """Computes training passes and generation of a language model.

    Attributes:
        shares_prompts: a pass computes a prompt once for all its answers.
        pads: a pass has rows of several lengths; otherwise each answer has a pass of its own.
        caches: generation keeps keys, values and states; otherwise each token reads the whole text again.
        loss: text for a warning, before the reason; empty for the fastest computation.
    """

    shares_prompts: bool = False
    pads: bool = True
    caches: bool = True
    loss: ClassVar[str] = ""

    @abstractmethod
    def log_probs(
        self, policy: LanguageModel, examples: Examples, reference: PolicyOutput | None = None
    ) -> PolicyOutput:
        """Log-probabilities, entropies and KL ``[N, T]``, see `CausalLMPolicy.forward`."""

    @abstractmethod
    def continuation(self, policy: LanguageModel, prompts: PromptBatch) -> Continuation:
        """Next-token logits of growing answers, see `CausalLMPolicy.continuation`."""


def projected(
    policy: LanguageModel,
    examples: Examples,
    reference: PolicyOutput | None,
    states: Tensor,
    places: Tensor,
) -> PolicyOutput:
    """Project hidden states to logits in chunks, and put the tokens' values at their places, with 0 elsewhere.

    Args:
        states: ``[S, D]``, the last hidden states before the policy's S tokens.
        places: ``[S]``, the tokens' index in ``[N T]``.
    """
    weight = policy.output_weight
    actions = examples.actions.flatten()
    of_reference = None if reference is None else reference.parameters
    values = linear_log_probs(states, weight, actions[places], policy.temperature, reference=of_reference)
    rectangles = []
    for value in values:
        flat = value.new_zeros(len(actions)).index_copy(0, places, value)
        rectangles.append(flat.view(examples.actions.shape))
    log_probs, entropy, *kl = rectangles
    if is_sharded(policy) and not torch.is_grad_enabled():
        weight = weight.clone()  # FSDP frees a reference's weight after its pass
    return PolicyOutput(log_probs, entropy, (states, weight), *kl)
