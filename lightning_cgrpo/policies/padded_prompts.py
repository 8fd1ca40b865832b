"""Prompts of padded rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


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
    def of(cls, inputs: Mapping[str, Tensor], group: Tensor, width: int) -> PaddedPrompts | None:
        """The prompts of these rows among all prompts' `inputs`; None for text alone."""
        images = without_text(inputs)
        if not images:
            return None
        prompts, group = group.unique(return_inverse=True)
        rows = prompts.to(inputs["prompt_ids"].device, non_blocking=True)
        return cls({name: tensor[rows] for name, tensor in images.items()}, group, width)


def without_text(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A policy's inputs of prompts besides their tokens, such as images; {} for text alone."""
    return {name: tensor for name, tensor in inputs.items() if name not in ("prompt_ids", "prompt_mask")}
