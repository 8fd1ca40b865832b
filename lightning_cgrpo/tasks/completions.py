"""What every task about generated text reads from rollouts: the texts and their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import Rollouts, Signal

LENGTH_SIGNALS: Mapping[str, SignalKind] = {"length": "number", "tokens": "number", "truncated": "indicator"}
"""What `length_signals` measures."""


def check_max_completion_tokens(value: int | None) -> None:
    """Raises:
    ValueError: if it is no number of tokens.
    """
    if value is not None and value < 1:
        raise ValueError(f"Expected argument `max_completion_tokens` to be at least 1, but got {value}.")


def texts(rollouts: Rollouts) -> list[list[str]]:
    """The completions, B lists of G texts, decoded without special tokens."""
    answers: list[list[str]] = _info(rollouts, "text")
    return answers


def length_signals(rollouts: Rollouts, max_completion_tokens: int | None) -> dict[str, Signal]:
    """How long the completions are, in tokens with the end token included.

    ``tokens`` is their number and ``truncated`` whether there was no end within them. ``length``, if
    `max_completion_tokens` is given, is a reward for brevity: -tokens / max_completion_tokens, and -1 for what was
    truncated, lest stopping short of the end pay.

    Returns:
        Signals ``[B, G]``, float32.

    Raises:
        ValueError: if a completion is longer than `max_completion_tokens`.
    """
    tokens = rollouts.lengths.float()
    truncated = _info(rollouts, "truncated").to(tokens.device)
    signals = {"tokens": Signal(tokens), "truncated": Signal(truncated.float())}
    if max_completion_tokens is not None:
        if bool((tokens > max_completion_tokens).any()):
            raise ValueError(
                f"Expected completions of at most {max_completion_tokens} tokens, the task's `max_completion_tokens`, "
                f"but got one of {int(tokens.max())}: give the sampler and the task the same limit."
            )
        signals["length"] = Signal(torch.where(truncated, -1.0, -tokens / max_completion_tokens))
    return signals


def _info(rollouts: Rollouts, name: str) -> Any:
    if name not in rollouts.info:
        raise ValueError(
            f"Expected the sampler to report '{name}' of the completions, but got {sorted(rollouts.info)}: "
            "use a sampler that generates text."
        )
    return rollouts.info[name]
