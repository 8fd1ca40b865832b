"""Casts of weights under autocast (``precision: bf16-mixed``): once, instead of in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn


@contextmanager
def cast_once(device: torch.device) -> Iterator[None]:
    """Context: autocast, if it is on, casts each trained weight once. Weights must not change inside.

    Lightning turns the cache of casts off, so that each decoded token would read all float32 weights again. The cache
    is emptied at the end, because a cast made here has no gradient, and is stale after an optimizer step.
    """
    if not torch.is_autocast_enabled(device.type):
        yield
        return
    with torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), cache_enabled=True):
        try:
            yield
        finally:
            torch.clear_autocast_cache()


def casts_weights(trainer: Trainer | None) -> bool:
    """True if passes cast float32 weights; FSDP gathers them as bfloat16 instead."""
    return (
        trainer is not None
        and trainer.precision == "bf16-mixed"
        and not isinstance(trainer.strategy, ModelParallelStrategy)
    )


def keep_cast(frozen: nn.Module) -> None:
    """Store a frozen network's linear weights as bfloat16, as autocast casts them: equal results, less memory.

    A weight that is also an embedding stays, because autocast casts no embeddings.
    """
    embeddings = {id(module.weight) for module in frozen.modules() if isinstance(module, nn.Embedding)}
    for module in frozen.modules():
        casts = isinstance(module, nn.Linear) and module.weight.dtype == torch.float32
        if casts and id(module.weight) not in embeddings:
            module.to(torch.bfloat16)
