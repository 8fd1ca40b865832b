"""A padded row for each answer, with its own copy of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Examples, read_steps
from lightning_cgrpo.policies.computations.computation import Computation, LanguageModel, projected
from lightning_cgrpo.policies.continuation import Continuation, PaddedContinuation, PromptBatch
from lightning_cgrpo.policies.padded_prompts import PaddedPrompts
from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.token_log_probs import kl_divergence, token_log_probs


@dataclass(frozen=True)
class AnswerRows:
    """A pass over the answers of N examples, up to the longest answer.

    Args:
        outputs: logits ``[N, steps, V]`` or hidden states ``[N, steps, D]`` before the tokens.
        tokens: ``[N, steps]``.
        mask: ``[N, T]`` bool, the policy's tokens, on the CPU.
    """

    outputs: Tensor
    tokens: Tensor
    mask: Tensor


@dataclass(frozen=True)
class PaddedRows(Computation):
    """A row for each answer, its prompt included; prompts are padded on the left, and answers on the right.

    Args:
        projects: compute hidden states alone, and logits from them in chunks; otherwise transformers computes the
            logits of all tokens at once.
    """

    projects: bool = False

    loss: ClassVar[str] = "Each answer is computed with its own copy of the prompt"

    def log_probs(
        self, policy: LanguageModel, examples: Examples, reference: PolicyOutput | None = None
    ) -> PolicyOutput:
        rows = self.rows(policy, examples, states=self.projects)
        if not self.projects:
            return _from_logits(policy, examples, reference, rows)
        # Only the policy's own tokens are projected.
        device = rows.outputs.device
        steps = rows.tokens.shape[1]
        own_rows = rows.mask[:, :steps].flatten().nonzero()[:, 0].to(device, non_blocking=True)  # of [N, steps]
        places = rows.mask.flatten().nonzero()[:, 0].to(device, non_blocking=True)  # of [N, T]
        states = rows.outputs.flatten(0, 1)[own_rows]
        return projected(policy, examples, reference, states, places)

    def rows(self, policy: LanguageModel, examples: Examples, states: bool) -> AnswerRows:
        """Compute logits, or hidden states if `states`, before the answers' tokens."""
        group, mask, prompt_mask = on_host(examples.group, examples.mask, examples.shared["prompt_mask"])
        text = read_steps(mask)
        steps = max(int(text.sum(-1).max()), 1)
        width = int(prompt_mask[group].sum(-1).max())
        prompt_tokens = examples.shared["prompt_ids"][examples.group][:, -width:]
        # `cat` copies the rollout's tensors, which may have been made under inference mode.
        ids = torch.cat([prompt_tokens, examples.actions[:, :steps]], 1)
        is_token = torch.cat([prompt_mask[group][:, -width:], text[:, :steps]], 1).to(ids.device, non_blocking=True)
        # The last column predicts nothing.
        input_ids = ids[:, :-1]
        input_mask = is_token[:, :-1]
        prompts = PaddedPrompts.of(examples.shared, group, width)
        positions = policy.row_positions(input_ids, input_mask, prompts)
        outputs = policy.logits(input_ids, input_mask, steps, None, positions, prompts, states)
        return AnswerRows(outputs, ids[:, -steps:], mask)

    def continuation(self, policy: LanguageModel, prompts: PromptBatch) -> Continuation:
        return PaddedContinuation(policy, prompts)


def _from_logits(
    policy: LanguageModel, examples: Examples, reference: PolicyOutput | None, rows: AnswerRows
) -> PolicyOutput:
    """Values from transformers' own logits of all tokens at once."""
    values = [*token_log_probs(rows.outputs, rows.tokens, policy.temperature)]
    if reference is not None:
        values.append(kl_divergence(rows.outputs, reference.parameters[0], policy.temperature))
    unused = examples.actions.shape[1] - rows.tokens.shape[1]
    log_probs, entropy, *kl = [pad(value, (0, unused)) for value in values]
    return PolicyOutput(log_probs, entropy, (rows.outputs,), *kl)
