"""Rotary positions of queries and keys at once: four kernels in a layer instead of transformers' ten."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

NAME = "apply_rotary_pos_emb"


class JointRotation:
    """Context: the network's attention rotates queries and keys of one row together, rounded as transformers rounds.

    Attention of transformers looks its function up by name in its own file and takes no other function. Therefore, the
    context replaces the name, unless the function differs from Llama's. Other threads, which call the same name, get
    transformers' numbers too.
    """

    def __init__(self, network: nn.Module) -> None:
        files = {type(module).__module__ for module in network.modules()}
        found: dict[str, Any] = {file: getattr(sys.modules.get(file), NAME, None) for file in files}
        # Kept here, because the name may hold another context's function when this context begins.
        self._functions = {file: function for file, function in found.items() if _is_llamas(function)}
        self._signed: tuple[Tensor | None, Tensor] = None, torch.zeros(0)

    def __enter__(self) -> None:
        for file in self._functions:
            setattr(sys.modules[file], NAME, self.rotated)

    def __exit__(self, *error: object) -> None:
        for file, function in self._functions.items():
            setattr(sys.modules[file], NAME, function)

    def rotated(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys; arguments are those of transformers' function.

        Args:
            q: ``[1, H, S, D]``, and ``[1, S, H, D]`` for an `unsqueeze_dim` of 2.
            cos: ``[1, S, D]``.
        """
        if len(q) > 1:  # a padded pass in another thread
            rotated: tuple[Tensor, Tensor] = next(iter(self._functions.values()))(q, k, cos, sin, unsqueeze_dim)
            return rotated
        half = sin.shape[-1] // 2
        of, signed = self._signed
        if sin is not of:  # one tensor for all layers
            signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
            self._signed = sin, signed
        # A vector twice in a row holds the vector with exchanged halves.
        each = [tensor[0, ..., None, :].expand(-1, -1, 2, -1) for tensor in (q, k)]
        twice = torch.cat(each, unsqueeze_dim - 1).flatten(-2)[None]
        cos, signed = cos.unsqueeze(unsqueeze_dim), signed.unsqueeze(unsqueeze_dim)
        turned = twice[..., : 2 * half] * cos + twice[..., half : 3 * half] * signed
        query, key = turned.split([q.shape[unsqueeze_dim], k.shape[unsqueeze_dim]], unsqueeze_dim)
        return query, key


@cache
def _is_llamas(function: Any) -> bool:
    """Check that a function computes what transformers' function for Llama computes, by the same lines."""
    from transformers.models.llama import modeling_llama

    llamas = modeling_llama.apply_rotary_pos_emb, modeling_llama.rotate_half
    try:
        own = function, function.__globals__["rotate_half"]
        return [*map(inspect.getsource, own)] == [*map(inspect.getsource, llamas)]
    except (AttributeError, KeyError, OSError, TypeError):  # no function of a file
        return False
