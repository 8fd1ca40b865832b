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
    masks = {name: _finite(signal) for name, signal in signals.items()}
    some = on_host(*((~finite).any() for finite in masks.values()))
    clean = dict(signals)
    for (name, finite), faulty in zip(masks.items(), some, strict=True):
        if faulty:
            signal = signals[name]
            applicable = finite if signal.applicable is None else signal.applicable & finite
            clean[name] = replace(signal.where(finite), applicable=applicable)
    return clean, {name: by_prompt(~finite) for name, finite in masks.items()}


def _finite(signal: Signal) -> Tensor:
    """``[B, G]`` bool: answers whose value and counts are finite, or inapplicable."""
    parts = [part.isfinite() for part in (signal.value, signal.count, signal.opportunities) if part is not None]
    finite = torch.stack([part if part.dim() == 2 else part.all(-1) for part in parts]).all(0)
    return finite if signal.applicable is None else finite | ~signal.applicable
