"""Prompts of padded rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lightning_cgrpo.rollout import Examples


@dataclass(frozen=True)
class PaddedPrompts:
    """Prompts that padded rows start with, and the prompts' images.

    Args:
        inputs: further inputs of B prompts, ``[B, ...]``.
        group: ``[N]`` int64, index of each row's prompt; on the CPU, no reader waits for it.
        width: columns of the prompts, padded on the left.
    """

    inputs: Mapping[str, Tensor]
    group: Tensor
    width: int

    @classmethod
    def of(cls, examples: Examples, group: Tensor, width: int) -> PaddedPrompts | None:
        """Prompts of these examples alone, whose `group` is on the CPU; None without further inputs."""
        inputs = {name: tensor for name, tensor in examples.shared.items() if not name.startswith("prompt_")}
        if not inputs:
            return None
        prompts, group = group.unique(return_inverse=True)
        rows = prompts.to(examples.actions.device, non_blocking=True)
        return cls({name: tensor[rows] for name, tensor in inputs.items()}, group, width)
