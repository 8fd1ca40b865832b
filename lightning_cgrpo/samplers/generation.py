"""Answers by generating text, token by token, with the policy's own weights."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers import Noise, Sampler


class GenerationSampler(Sampler):
    """Reads each prompt once and continues it G times, until a stop token or `max_new_tokens`.

    Prompts are the column ``prompt``: texts, or lists of chat messages. Each token is the inverse of the cumulative
    distribution at one number drawn for (prompt, answer, position), so an answer depends neither on the number of
    processes nor on the other prompts of the batch, except through the rounding of the logits.

    Rollouts have T = `max_new_tokens` and the inputs ``prompt_ids`` and ``prompt_mask`` ``[B, P]``; a stop token is
    the last action of its answer. Log-probabilities are left to the module: those of sampling differ from those of
    training by rounding, and in bfloat16 by up to a tenth. In `info`:

    - ``text``: B lists of G texts, special tokens left out
    - ``truncated``: ``[B, G]`` bool, answers that no stop token ended

    Args:
        max_new_tokens: the longest answer, its stop token included.
        top_p: sample from the nucleus alone, the likeliest tokens that together have this probability (Holtzman et
            al., 2020). The policy's log-probabilities remain those of the full distribution.
        batch_size: answers generated at once, rounded down to whole groups (at least one); by default all.

    The padding token is never sampled, unless it is a stop token.
    """

    def __init__(self, max_new_tokens: int, top_p: float = 1.0, batch_size: int | None = None) -> None:
        for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        if not 0 < top_p <= 1:
            raise ValueError(f"Expected argument `top_p` to be in (0, 1], but got {top_p}.")
        self.max_new_tokens = max_new_tokens
        self.top_p = top_p
        self.batch_size = batch_size

    @torch.no_grad()
    def rollout(self, policy: CausalLMPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        """Sample ``[B, G]`` answers.

        Raises:
            UserError: a prompt is too long for the policy, or there is no column of that name.
            FloatingPointError: the policy's logits are not finite.
        """
        if "prompt" not in prompts.columns:
            raise UserError(
                f"Expected prompts to have the column 'prompt', but got {sorted(prompts.columns)}, try another "
                "datamodule, or rename the column."
            )
        ids, mask = policy.encode(prompts.columns["prompt"], prompts.index)
        limit = policy.context_length
        if limit is not None and ids.shape[1] + self.max_new_tokens > limit:
            raise UserError(
                f"Expected prompt and answer to fit into the {limit} positions of '{policy.name}', but got a prompt of "
                f"{ids.shape[1]} tokens and max_new_tokens {self.max_new_tokens}, try less of either."
            )
        draws = noise(group_size, self.max_new_tokens).to(ids.device)
        groups = len(ids) if self.batch_size is None else max(self.batch_size // group_size, 1)
        parts = [
            self._generate(policy, *part)
            for part in zip(*(tensor.split(max(groups, 1)) for tensor in (ids, mask, draws)), strict=True)
        ]
        actions, taken, truncated = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        texts = policy.decode(actions.flatten(0, 1), taken.flatten(0, 1))
        return Rollouts(
            actions=actions,
            mask=taken,
            inputs={"prompt_ids": ids, "prompt_mask": mask},
            info={
                "text": [texts[i : i + group_size] for i in range(0, len(texts), group_size)],
                "truncated": truncated,
            },
        )

    def _generate(
        self, policy: CausalLMPolicy, ids: Tensor, mask: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions and mask ``[B, G, T]``, and which answers have no end ``[B, G]``, for draws ``[B, G, T]``."""
        shape = draws.shape
        group_size, draws = shape[1], draws.flatten(0, 1)  # [B G, T]
        actions = torch.full(draws.shape, policy.pad_token, device=ids.device)
        taken = torch.zeros_like(actions, dtype=torch.bool)
        if len(ids) == 0:  # this process has got none
            return actions.view(shape), taken.view(shape), taken.view(shape)[:, :, 0]
        stops = torch.tensor(policy.stop_tokens, device=ids.device)
        # The prompts are read once each; then rows are answers, those that go on.
        cache = policy.new_cache()
        logits = policy.logits(ids, mask, keep=1, cache=cache)[:, 0].repeat_interleave(group_size, 0)
        cache.batch_repeat_interleave(group_size)
        mask = mask.repeat_interleave(group_size, 0)
        rows = torch.arange(len(actions), device=ids.device)
        for step in range(self.max_new_tokens):
            if step:
                mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
                logits = policy.logits(actions[rows, step - 1, None], mask, keep=1, cache=cache)[:, 0]
            tokens = sample(self._probabilities(policy, logits), draws[rows, step])
            actions[rows, step] = tokens
            taken[rows, step] = True
            going_on = (~torch.isin(tokens, stops)).nonzero().squeeze(-1)
            if len(going_on) < len(rows):
                rows, mask = rows[going_on], mask[going_on]
                cache.batch_select_indices(going_on)
            if len(rows) == 0:
                break
        truncated = torch.zeros(len(actions), dtype=torch.bool, device=ids.device)
        truncated[rows] = True
        return actions.view(shape), taken.view(shape), truncated.view(shape[:2])

    def _probabilities(self, policy: CausalLMPolicy, logits: Tensor) -> Tensor:
        """What to sample from, float64 ``[R, V]``, from logits ``[R, V]``."""
        if not bool(logits.amax(-1).isfinite().all()):
            raise FloatingPointError(
                f"Expected finite logits from '{policy.name}', but got NaN or infinity, because training diverged or a "
                "half-precision model overflowed, try a smaller learning rate, or float32 or bfloat16 weights."
            )
        scaled = logits.double() / policy.temperature
        if policy.pad_token not in policy.stop_tokens:
            scaled[:, policy.pad_token] = -torch.inf
        return nucleus(scaled.softmax(-1), self.top_p)


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Probabilities ``[R, V]`` with 0 outside of the smallest set of likeliest tokens that has the mass `top_p`.

    Not normalized. Among equals, lower token numbers come first; there is always at least one token.

    Example:
        >>> nucleus(torch.tensor([[0.2, 0.5, 0.3]]), 0.6)
        tensor([[0.0000, 0.5000, 0.3000]])
    """
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * (before < top_p))


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]`` by the inverse of the cumulative distribution of weights ``[R, V]`` at draws ``[R]`` in [0, 1).

    A token of weight 0 is never chosen. Computed in float64: 1 - 2^-24 is the largest float32 below 1, which would
    leave less than that to the tail of a large vocabulary.

    Example:
        >>> sample(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.69]))
        tensor([1])
    """
    cumulative = probabilities.double().cumsum(-1)
    total = cumulative[:, -1]
    # Below the total also where the product rounds up to it, so that the token found has a share of the total.
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)
