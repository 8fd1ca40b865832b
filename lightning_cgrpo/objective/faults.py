"""Faults: answers whose signals are not finite."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Signal, Signals
from lightning_cgrpo.objective.measurement import by_prompt


def isolate_faults(signals: Signals) -> tuple[dict[str, Signal], dict[str, Tensor]]:
    """Make answers with non-finite values or counts inapplicable (and 0).

    Returns the signals, and the number of such answers ``[B]`` by signal.
    """
    masks = {name: _finite_answers(signal) for name, signal in signals.items()}
    # One wait for the device tells which signals have faults.
    has_faults = on_host(*((~finite).any() for finite in masks.values()))
    clean = dict(signals)
    for (name, finite), faulty in zip(masks.items(), has_faults, strict=True):
        if faulty:
            signal = signals[name]
            applicable = finite if signal.applicable is None else signal.applicable & finite
            clean[name] = replace(signal.where(finite), applicable=applicable)
    faults = {name: by_prompt(~finite) for name, finite in masks.items()}
    return clean, faults


def _finite_answers(signal: Signal) -> Tensor:
    """``[B, G]`` bool: answers whose value and counts are finite, or inapplicable."""
    finite_parts = []
    for part in (signal.value, signal.count, signal.opportunities):
        if part is None:
            continue
        finite = part.isfinite()  # [B, G], or [B, G, T] by step
        finite_parts.append(finite if part.dim() == 2 else finite.all(-1))
    finite = torch.stack(finite_parts).all(0)
    if signal.applicable is None:
        return finite
    return finite | ~signal.applicable
