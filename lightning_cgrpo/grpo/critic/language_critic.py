"""A critic that reads tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.critic.critic import Critic
from lightning_cgrpo.grpo.critic.mlp_critic import zero_heads
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy


class LanguageCritic(Critic):
    """A separate language model with linear value heads on its last hidden state (paper, appendix).

    The heads are at least float32, and 0 at first. The training unit is the whole answer.

    Args:
        network: reads the policy's starting checkpoint again, whole or with its own adapters. Its output layer is
            dropped.
    """

    def __init__(self, network: CausalLMPolicy) -> None:
        super().__init__()
        self.network = network
        self.heads: nn.Linear | None = None

    def load(self, components: int) -> None:
        if self.heads is not None:
            return
        self.network.load()
        weight = self.network.output_weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.heads = nn.Linear(weight.shape[1], components, dtype=dtype, device=weight.device)
        zero_heads(self.heads)
        # Logits are now the last hidden states.
        self.network.network.set_output_embeddings(nn.Identity())

    def forward(self, examples: Examples) -> Tensor:
        if not self.network.shares_prompts:
            states, _ = self.network.padded_logits(examples)  # [N, steps, D]
            return pad(self._values(states), (0, 0, 0, examples.actions.shape[1] - states.shape[1]))
        states, places = self.network.packed_states(examples)
        values = self._values(states)  # [S, J]
        shape = examples.actions.shape
        return values.new_zeros(shape.numel(), values.shape[-1]).index_copy(0, places, values).view(*shape, -1)

    def _values(self, states: Tensor) -> Tensor:
        assert self.heads is not None
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = self.heads(states.to(self.heads.weight.dtype))
        return values.to(torch.promote_types(values.dtype, torch.float32))
