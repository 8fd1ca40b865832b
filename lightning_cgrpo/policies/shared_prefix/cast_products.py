"""Linear layers of a training pass under autocast, with fewer casts.

Autocast casts each weight and each weight's gradient by a kernel of its own: 560 of a pass at 28 layers. Here a few
kernels cast all weights, and products give the gradients in the weights' dtype, without a rounding in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lightning_cgrpo.policies.sharding import is_sharded

WIDER = {"cuda"}
"""Kinds of devices that multiply half-precision factors to a float32 product; elsewhere the product is cast."""


@contextmanager
def cast_together(network: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Context of a forward pass: linear layers with float32 weights compute in a half-precision `dtype`.

    The output layer, which reads the answers' tokens alone, and weights that FSDP shards are left out.
    """
    layers = _castable_layers(network)
    weights = []
    for layer in layers:
        weights.append(layer.weight)
        if layer.bias is not None:
            weights.append(layer.bias)
    casts = [torch.empty_like(weight, dtype=dtype, requires_grad=False) for weight in weights]
    if weights:
        with torch.no_grad():
            torch._foreach_copy_(casts, weights)
    cast_of = {id(weight): cast for weight, cast in zip(weights, casts, strict=True)}
    for layer in layers:
        bias = None if layer.bias is None else cast_of[id(layer.bias)]
        layer.__dict__["forward"] = _Cast(layer, cast_of[id(layer.weight)], bias)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _castable_layers(network: Any) -> list[nn.Linear]:
    output = network.get_output_embeddings() if hasattr(network, "get_output_embeddings") else None
    layers = []
    for module in network.modules():
        # A layer with a forward of its own, such as a hook's, stays.
        if type(module) is not nn.Linear or module is output or "forward" in module.__dict__:
            continue
        if module.weight.dtype == torch.float32 and not is_sharded(module):
            layers.append(module)
    return layers


@dataclass(eq=False)
class _Cast:
    """The forward of a linear layer.

    Args:
        weight: the cast of the layer's weight, without gradients; likewise `bias`.
    """

    layer: nn.Linear
    weight: Tensor
    bias: Tensor | None

    def __call__(self, states: Tensor) -> Tensor:
        output: Tensor = _Product.apply(states, self.layer.weight, self.layer.bias, self.weight, self.bias)
        return output


class _Product(torch.autograd.Function):
    """states weight^T + bias by the casts of weight and bias, which get the gradients."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, cast_weight: Tensor, cast_bias: Tensor | None
    ) -> Tensor:
        ctx.states_dtype = states.dtype
        ctx.weight_dtype = weight.dtype
        states = states.to(cast_weight.dtype)
        ctx.save_for_backward(states, cast_weight)
        return linear(states, cast_weight, cast_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        of_states = of_weight = of_bias = None
        rows = gradient.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            of_states = torch.mm(rows, weight).view_as(states).to(ctx.states_dtype)
        if ctx.needs_input_grad[1]:
            of_weight = gradient_of_weight(rows.T, states.flatten(0, -2), ctx.weight_dtype)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0, dtype=ctx.weight_dtype)
        return of_states, of_weight, of_bias, None, None


def gradient_of_weight(gradient: Tensor, states: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of matrices ``[O, N]`` and ``[N, I]`` in half precision, in a wider dtype."""
    if gradient.device.type in WIDER:
        return torch.mm(gradient, states, out_dtype=dtype)
    return torch.mm(gradient, states).to(dtype)
