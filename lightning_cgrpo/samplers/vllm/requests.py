"""Requests to vLLM, and its answers as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import index
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError, printable
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.ends import first_end
from lightning_cgrpo.samplers.engine import Sampling

LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities after temperature and filters."""
ROUNDING = 1e-3
"""Largest log-probability in nats that rounding explains."""


MANY = 64
"""Tokens that a policy does not sample with certainty, one and all."""


@dataclass(frozen=True)
class Turn:
    """Sampled tokens of a request, with their log-probabilities."""

    tokens: list[int]
    log_probs: list[float]
    ended: bool = False  # by a stop token or a stop string


def seeds_of(draws: Tensor) -> list[int]:
    """32-bit seeds from draws in [0, 1)."""
    return (draws.double() * 2**32).long().tolist()


def request_parameters(
    policy: CausalLMPolicy, sampling: Sampling, seed: int, limit: int | None = None
) -> dict[str, Any]:
    """All parameters of a request, because vLLM fills missing parameters from the model's generation config.

    Args:
        limit: most tokens of the answer; by default `max_new_tokens`.
    """
    request = {
        "n": 1,
        "seed": seed,
        "temperature": policy.temperature,
        "top_p": sampling.top_p,
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": sampling.max_new_tokens if limit is None else limit,
        # vLLM does not count the stop token.
        "min_tokens": max(sampling.min_new_tokens - 1, 0),
        "stop_token_ids": list(policy.stop_tokens),
        "ignore_eos": True,
        "logprobs": 0,
    }
    if sampling.stop:
        request["stop"] = list(sampling.stop)
        request["include_stop_str_in_output"] = True
        # vLLM looks for strings in its own text, which has special tokens only if they are asked for.
        request["skip_special_tokens"] = False
    return request


def turns_to_rollouts(
    policy: CausalLMPolicy, inputs: dict[str, Tensor], answers: Sequence[Turn], group_size: int, length: int
) -> Rollouts:
    """Answers in the order (b, g) to the prompts of `inputs`, as tensors of `length` T."""
    tokens = torch.full((len(answers), length), policy.pad_token)
    mask = torch.zeros((len(answers), length), dtype=torch.bool)
    log_probs = torch.zeros((len(answers), length))
    truncated = torch.zeros(len(answers), dtype=torch.bool)
    for row, answer in enumerate(answers):
        size = len(answer.tokens)
        tokens[row, :size] = torch.tensor(answer.tokens)
        log_probs[row, :size] = torch.tensor(answer.log_probs)
        mask[row, :size] = True
        truncated[row] = not answer.ended
    shape = (len(inputs["prompt_ids"]), group_size, length)
    return Rollouts(
        actions=tokens.view(shape),
        mask=mask.view(shape),
        inputs=inputs,
        sampling_log_probs=log_probs.view(shape),
        info={"truncated": truncated.view(shape[:2])},
    ).to(policy.device)


def read_turn(policy: CausalLMPolicy, request: Mapping[str, Any], reply: Mapping[str, Any], where: str) -> Turn:
    """The turn in a server's reply, up to its end by `Ends`; `where` names the server.

    Raises:
        UserError: there is none that continues the request's prompt by the policy's tokens, within the length, with
            possible log-probabilities.
    """
    length = request["max_tokens"]
    stops = request["stop_token_ids"]
    vocabulary = len(policy.output_weight)
    # 1. Read the tokens of an answer to this prompt, and their log-probabilities.
    try:
        (choice,) = reply["choices"]
        if choice["prompt_token_ids"] != request["prompt"]:
            raise ValueError
        tokens = [index(token) for token in choice["token_ids"]]
        log_probs = [math.nan if value is None else float(value) for value in choice["logprobs"]["token_logprobs"]]
        reason = str(choice["finish_reason"])
    except (LookupError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"Expected {where} to give the tokens and log-probabilities of an answer to the prompt's tokens, but got a "
            "reply without them, try vLLM 0.33."
        ) from None
    size = len(tokens)
    unknown = [token for token in tokens if not 0 <= token < vocabulary]
    if unknown:
        raise UserError(
            f"Expected {where} to answer with the {vocabulary} tokens of '{policy.name}', but got token {unknown[0]}, "
            "try serving the policy's model."
        )
    # 2. The answer is whole: it ends where the policy's answers end, or has all of its tokens.
    end = first_end(policy, tokens, stops, tuple(request.get("stop", ())), request.get("min_tokens", 0) + 1)
    if reason == "length" and 1 <= size < length and end is None:
        raise UserError(
            f"Expected {where} to have room for answers of {length} tokens, but got an answer cut after {size}, try a "
            "larger max_model_len there, or a smaller max_new_tokens."
        )
    is_whole = size <= length and (end is not None or size == length)
    goes_on_after_stop = any(token in stops for token in tokens[:-1])
    if not is_whole or goes_on_after_stop or len(log_probs) != size or reason not in ("stop", "length"):
        raise UserError(
            f"Expected {where} to answer with at most {length} tokens, a log-probability for each, until a stop token "
            f"or stop string, but got {size} tokens, {len(log_probs)} log-probabilities and the end "
            f"'{printable(reason)}', try vLLM 0.33."
        )
    # 3. Its log-probabilities are possible.
    impossible = [value for value in log_probs if not -math.inf < value <= ROUNDING]
    if impossible:
        raise UserError(
            f"Expected {where} to give log-probabilities of at most 0, but got {impossible[0]:g}, try `vllm serve` "
            "with --dtype bfloat16 or float32, because float16 overflows."
        )
    # vLLM's text may show a string a token later, once a letter is whole.
    return Turn(tokens[:end], log_probs[:end], end is not None)


def check_informative(turns: Sequence[Turn], request: Mapping[str, Any], where: str) -> None:
    """Refuse log-probabilities that are all 0, of many tokens sampled from the whole distribution.

    Args:
        request: of one of the turns, whose filters are those of all.
        where: names the server.
    """
    unfiltered = request["top_k"] == 0 and request["top_p"] == 1 and request["min_p"] == 0
    log_probs = list(chain.from_iterable(turn.log_probs for turn in turns))
    count = len(log_probs)
    if unfiltered and count >= MANY and not any(log_probs):
        raise UserError(
            f"Expected {where} to give the log-probabilities of what it samples, but got 0 for each of {count} "
            f"tokens, try `vllm serve` with --logprobs-mode {LOGPROBS_MODE}."
        )
