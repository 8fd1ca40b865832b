"""Texts and length signals of generated answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_cgrpo.core.rollout import Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind

LENGTH_SIGNALS: Mapping[str, SignalKind] = {"length": "number", "tokens": "number", "truncated": "indicator"}


def texts(rollouts: Rollouts) -> list[list[str]]:
    """B lists of G texts without special tokens."""
    return _reported(rollouts, "text")


def length_signals(rollouts: Rollouts, max_completion_tokens: int | None) -> dict[str, Signal]:
    """Signals ``[B, G]`` of the completions' lengths in tokens, with the end token.

    ``truncated`` marks completions without an end token. `max_completion_tokens` adds ``length``:
    -tokens / max_completion_tokens, or -1 for truncated completions.
    """
    tokens = rollouts.lengths.float()
    truncated = _reported(rollouts, "truncated").to(tokens.device)
    signals = {"tokens": Signal(tokens), "truncated": Signal(truncated.float())}
    if max_completion_tokens is not None:
        signals["length"] = Signal(torch.where(truncated, -1.0, -tokens / max_completion_tokens))
    return signals


def _reported(rollouts: Rollouts, name: str) -> Any:
    if name not in rollouts.info:
        raise ValueError(
            f"Expected the sampler to report '{name}' of the completions, but got {sorted(rollouts.info)}: "
            "use a sampler that generates text."
        )
    return rollouts.info[name]
