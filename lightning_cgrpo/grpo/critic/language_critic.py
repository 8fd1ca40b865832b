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
        answers, longest = examples.actions.shape  # N, T
        if not self.network.shares_prompts:
            states, _ = self.network.padded_logits(examples)  # [N, steps, D], of at most T steps
            values = self._values_of(states)  # [N, steps, J]
            return pad(values, (0, 0, 0, longest - states.shape[1]))  # [N, T, J]
        # The packed row has the states of the answers' steps alone, S of them.
        states, places = self.network.packed_states(examples)
        values = self._values_of(states)  # [S, J]
        no_values = values.new_zeros(answers * longest, values.shape[-1])  # [N T, J]
        return no_values.index_copy(0, places, values).view(answers, longest, -1)

    def _values_of(self, states: Tensor) -> Tensor:
        """The heads' values ``[..., J]`` of last hidden states ``[..., D]``, in at least float32."""
        assert self.heads is not None
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = self.heads(states.to(self.heads.weight.dtype))
        return values.to(torch.promote_types(values.dtype, torch.float32))
