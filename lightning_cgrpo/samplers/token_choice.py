"""The choice of each answer's next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.engine import Sampling


class TokenChoice:
    """Maps logits ``[R, V]`` and draws ``[R]`` to chosen tokens ``[R]``.

    With a repetition penalty, it keeps the `log_probs` ``[R]`` of the chosen tokens.
    """

    def __init__(self, policy: CausalLMPolicy, sampling: Sampling) -> None:
        self.policy = policy
        self.sampling = sampling
        # The padding token is no choice, unless it also ends answers.
        never = [] if policy.pad_token in policy.stop_tokens else [policy.pad_token]
        self._never = torch.tensor(never, dtype=torch.int64, device="cpu").to(policy.device, non_blocking=True)
        self.stops = torch.tensor(policy.stop_tokens, device="cpu").to(policy.device, non_blocking=True)
        self._sum = torch.zeros((), dtype=torch.float64, device=policy.device)
        self._filters = _logits_filters(sampling)
        self.log_probs = torch.zeros(0)

    def __call__(self, logits: Tensor, draws: Tensor, place: Tensor, seen: Tensor | None) -> Tensor:
        """Choose a token of each answer.

        Args:
            place: ``[R]`` of the token, in its answer or among equally many places of each answer.
            seen: ``[R, V]`` bool, tokens to penalize.
        """
        longest = self.sampling.max_new_tokens
        least = self.sampling.min_new_tokens
        # 1. Logits in float32 at least, with the penalty, at the policy's temperature.
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if seen is not None:
            scaled = penalize_seen(scaled, seen, self.sampling.repetition_penalty)
        if self.policy.temperature != 1:
            scaled = scaled / self.policy.temperature
        # 2. Tokens that cannot come here get no probability.
        scaled = scaled.index_fill_(-1, self._never, -torch.inf)
        if least > 1:
            early = place % longest + 1 < least
            stops = scaled.index_select(-1, self.stops).masked_fill_(early[:, None], -torch.inf)
            scaled.index_copy_(-1, self.stops, stops)
        for keep_likely in self._filters:
            scaled = keep_likely(None, scaled)
        # 3. Draw a token of each answer.
        probabilities = scaled.softmax(-1)
        # If a row's largest logit is NaN or infinite, all of its probabilities are NaN, and the sum remains NaN.
        self._sum += probabilities[:, 0].sum()
        chosen = sample(probabilities, draws)
        if seen is not None:
            self.log_probs = probabilities.gather(-1, chosen[:, None])[:, 0].log().float()
        return chosen

    def running_rows(self, going_on: Tensor) -> Tensor:
        """Indices of the rows that go on, on the CPU. The host waits for the device.

        Raises:
            FloatingPointError: logits were not finite.
        """
        failed, goes_on = on_host(self._sum.isnan(), going_on)
        if failed:
            raise FloatingPointError(
                f"Expected finite logits from '{self.policy.name}', but got NaN or infinity, because training diverged "
                "or a half-precision model overflowed, try a smaller learning rate, or float32 or bfloat16 weights."
            )
        return goes_on.nonzero()[:, 0]


def prompt_tokens_seen(policy: CausalLMPolicy, inputs: Mapping[str, Tensor]) -> Tensor:
    """``[B, V]`` bool, the tokens of each prompt."""
    ids, mask = inputs["prompt_ids"], inputs["prompt_mask"].to(torch.uint8)
    seen = mask.new_zeros(len(ids), len(policy.output_weight))
    return seen.scatter_reduce_(1, ids, mask, "amax").bool()


def _logits_filters(sampling: Sampling) -> list[Callable[[None, Tensor], Tensor]]:
    """Transformers' filters of logits ``[R, V]``: of the k likeliest tokens, by `min_p`, then by `top_p`."""
    from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    filters: list[Any] = []
    if sampling.top_k is not None:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.min_p > 0:
        filters.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_p < 1:
        filters.append(TopPLogitsWarper(sampling.top_p))
    return filters


def penalize_seen(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits ``[R, V]`` of seen tokens by `penalty`, and multiply negative ones (Keskar et al., 2019).

    Example:
        >>> penalize_seen(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  2.]])
    """
    less_likely = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, less_likely, logits)


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]``, drawn by the inverse cumulative distribution of weights ``[R, V]`` at draws ``[R]`` in [0, 1).

    Sums are float64, because float32 would cut the tail of a large vocabulary.

    Example:
        >>> sample(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.69]))
        tensor([1])
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    # A draw below 1 times the total is below the total also after rounding, because rounding is monotone. NaN, which
    # the engine reports later, must not give an index outside.
    target = draws.double() * cumulative[:, -1]
    chosen = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return chosen.clamp_(max=cumulative.shape[1] - 1)
