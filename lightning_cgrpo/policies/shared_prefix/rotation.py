"""Rotary positions of queries and keys at once: four kernels in a layer instead of transformers' ten."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

NAME = "apply_rotary_pos_emb"


class JointRotation:
    """Context: the network's attention rotates queries and keys of one row together, rounded as transformers rounds.

    Transformers' attention calls the function `NAME` of its own file. The context replaces this function in files
    whose function gives the numbers of Llama's. Other threads, which call the same name, get the same numbers.
    """

    def __init__(self, network: nn.Module) -> None:
        files = [sys.modules[name] for name in {type(module).__module__ for module in network.modules()}]
        # Kept here, because the name may hold another context's function when this context begins.
        self._functions = {file: getattr(file, NAME) for file in files if _is_llamas(getattr(file, NAME, None))}
        self._signed: tuple[Tensor | None, Tensor] = None, torch.zeros(0)

    def __enter__(self) -> None:
        for file in self._functions:
            setattr(file, NAME, self.rotated)

    def __exit__(self, *error: object) -> None:
        for file, function in self._functions.items():
            setattr(file, NAME, function)

    def rotated(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys; arguments are those of transformers' function.

        Args:
            q: ``[1, H, S, D]``, and ``[1, S, H, D]`` for an `unsqueeze_dim` of 2.
            cos: ``[1, S, D]``.
        """
        if len(q) > 1:  # a padded pass in another thread
            return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        half = sin.shape[-1] // 2
        latest, signed = self._signed
        if sin is not latest:  # one tensor for all layers
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
    """Compare the results of a function with those of transformers' function for Llama, bit for bit."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 8, generator=draw, device="cpu") for heads in (4, 2))
    cos, sin = (torch.randn(1, 3, 8, generator=draw, device="cpu") for _ in range(2))
    try:
        return all(map(torch.equal, function(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin)))
    except (TypeError, ValueError, RuntimeError):  # another function, or none
        return False
