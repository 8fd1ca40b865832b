"""Requests to vLLM, and its answers as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.engine import Completions, Sampling

LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities after temperature and filters."""


@dataclass(frozen=True)
class Reply:
    """One answer of vLLM; missing log-probabilities are NaN, and `reason` (of the end) is "stop" or "length"."""

    tokens: list[int]
    log_probs: list[float]
    reason: str


def seeds(draws: Tensor) -> list[int]:
    """32-bit seeds of B G answers in the order (b, g), from each answer's first draw."""
    values: list[int] = (draws[:, :, 0].double() * 2**32).long().flatten().tolist()
    return values


def parameters(policy: CausalLMPolicy, sampling: Sampling, seed: int) -> dict[str, Any]:
    """All parameters of a request, because vLLM fills missing parameters from the model's generation config."""
    return {
        "n": 1,
        "seed": seed,
        "temperature": policy.temperature,
        "top_p": sampling.top_p,
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": sampling.max_new_tokens,
        # vLLM does not count the stop token.
        "min_tokens": max(sampling.min_new_tokens - 1, 0),
        "stop_token_ids": list(policy.stop_tokens),
        "ignore_eos": True,
        "logprobs": 0,
    }


def completions(
    policy: CausalLMPolicy, answers: list[Reply], shape: tuple[int, int], sampling: Sampling, where: str
) -> Completions:
    """Answers in the order (b, g) as tensors of `shape` (B, G); `where` names the server."""
    length = sampling.max_new_tokens
    tokens = torch.full((len(answers), length), policy.pad_token)
    mask = torch.zeros((len(answers), length), dtype=torch.bool)
    log_probs = torch.zeros((len(answers), length))
    truncated = torch.zeros(len(answers), dtype=torch.bool)
    for row, answer in enumerate(answers):
        _check_end(policy, answer, length, where)
        size = len(answer.tokens)
        tokens[row, :size] = torch.tensor(answer.tokens)
        log_probs[row, :size] = torch.tensor(answer.log_probs)
        mask[row, :size] = True
        truncated[row] = answer.tokens[-1] not in policy.stop_tokens
    device = policy.device
    return Completions(
        tokens.view(*shape, length).to(device),
        mask.view(*shape, length).to(device),
        truncated.view(shape).to(device),
        log_probs.view(*shape, length).to(device),
    )


def _check_end(policy: CausalLMPolicy, answer: Reply, length: int, where: str) -> None:
    size = len(answer.tokens)
    stopped = [token in policy.stop_tokens for token in answer.tokens]
    if answer.reason == "length" and 1 <= size < length and not any(stopped):
        raise UserError(
            f"Expected {where} to have room for answers of {length} tokens, but got an answer cut after {size}, try a "
            "larger max_model_len there, or a smaller max_new_tokens."
        )
    ended = size <= length and (any(stopped) or size == length)
    if not ended or any(stopped[:-1]) or len(answer.log_probs) != size or answer.reason not in ("stop", "length"):
        raise UserError(
            f"Expected {where} to answer with at most {length} tokens, a log-probability for each, until a stop token, "
            f"but got {size} tokens, {len(answer.log_probs)} log-probabilities and the end '{answer.reason}', try vLLM "
            "0.33."
        )
