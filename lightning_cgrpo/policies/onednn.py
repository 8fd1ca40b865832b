"""Matrix products on the CPU by oneDNN instead of MKL, which uses half of an AMD processor's vector width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lightning_cgrpo.policies.sharding import is_sharded

FEWEST = 2**16
"""Weights of a layer below which calling oneDNN takes longer than it saves."""
SMALL = 2_000_000
"""Weights of a network, such as the packaged models, that keeps PyTorch's products, and the rounding of its results."""
ROWS = 8
"""Rows of a product for which oneDNN arranges the weights; the arrangement suits 1 to 128 rows."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest difference that rounding explains, by dtype of the weights."""


@contextmanager
def arranged_weights(policy: nn.Module) -> Iterator[None]:
    """Context of a rollout: on the CPU, large linear layers read their weights in oneDNN's arrangement.

    A decoded step reads all weights for few rows. As they lie, a product spends most of its time on rearranging them.
    The arranged copies take the weights' memory again, so the context holds them for a rollout only. Weights must not
    change inside. Passes with gradients and weights that FSDP shards stay with PyTorch's products.
    """
    with _replaced_forwards(policy, _Arranged, tuple(CLOSE)):
        yield


@contextmanager
def faster_products(*networks: object) -> Iterator[None]:
    """Context of training passes and their gradients: on the CPU, large linear layers in float32 multiply by oneDNN.

    Networks that are no modules, and weights that FSDP shards, are left out.
    """
    with ExitStack() as stack:
        for network in networks:
            if isinstance(network, nn.Module):
                stack.enter_context(_replaced_forwards(network, _Trained, (torch.float32,)))
        yield


def faster_linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear layer of states ``[..., I]`` by a weight ``[O, I]``, without gradients: by oneDNN where it gains."""
    if states.device.type == "cpu" and states.dtype == torch.float32 and states.numel() and _is_faster(weight):
        return _onednn_linear(states, weight, bias)
    return linear(states, weight, bias)


class _Arranged:
    """The forward of a linear layer in a rollout."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self._arranged = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)

    def __call__(self, states: Tensor) -> Tensor:
        layer = self.layer
        if torch.is_grad_enabled() or states.dtype != layer.weight.dtype or not states.numel():
            return linear(states, layer.weight, layer.bias)
        return _onednn_linear(states, self._arranged, layer.bias)


@dataclass(eq=False)
class _Trained:
    """The forward of a linear layer in training."""

    layer: nn.Linear

    def __call__(self, states: Tensor) -> Tensor:
        layer = self.layer
        if torch.is_autocast_enabled("cpu") or states.dtype != layer.weight.dtype or not states.numel():
            return linear(states, layer.weight, layer.bias)
        output: Tensor = _Product.apply(states, layer.weight, layer.bias)
        return output


class _Product(torch.autograd.Function):
    """`_onednn_linear` with derivatives."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _onednn_linear(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        states_need_grad, weight_needs_grad, bias_needs_grad = ctx.needs_input_grad
        of_states = of_weight = of_bias = None
        rows = grad.flatten(0, -2)  # [N, O]
        if states_need_grad:
            of_states = _onednn_linear(grad, weight.T, None)
        if weight_needs_grad:
            of_weight = _onednn_linear(rows.T, states.flatten(0, -2).T, None)
        if bias_needs_grad:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


@contextmanager
def _replaced_forwards(
    network: nn.Module, forward: Callable[[nn.Linear], Any], dtypes: tuple[torch.dtype, ...]
) -> Iterator[None]:
    """Context: large linear layers on the CPU whose weights have one of the dtypes have another forward."""
    modules = list(network.modules())
    size = sum(weight.numel() for weight in network.parameters())
    if size < SMALL or any(is_sharded(module) for module in modules):
        yield
        return
    layers = []
    for module in modules:
        # A layer with a forward of its own, such as a hook's, stays.
        if type(module) is not nn.Linear or "forward" in module.__dict__:
            continue
        weight = module.weight
        if weight.dtype in dtypes and weight.device.type == "cpu" and _is_faster(weight):
            layers.append(module)
    for layer in layers:
        layer.__dict__["forward"] = forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _onednn_linear(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return output


def _is_faster(weight: Tensor) -> bool:
    return weight.numel() >= FEWEST and _agrees_here(weight.dtype)


@cache
def _agrees_here(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN gives PyTorch's products, tried on small ones."""
    if dtype not in CLOSE:
        return False
    draw = torch.Generator("cpu").manual_seed(0)
    states = torch.randn((3, 32), generator=draw, device="cpu").to(dtype)
    weight = torch.randn((32, 64), generator=draw, device="cpu").to(dtype).T
    bias = torch.randn((64,), generator=draw, device="cpu").to(dtype)
    expected = linear(states, weight, bias)
    try:
        arranged = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        outputs = [_onednn_linear(states, arranged, bias), _onednn_linear(states, weight, bias)]
    except Exception:  # of PyTorch: oneDNN is not part of it, or lacks this dtype on this processor
        return False
    tolerance = CLOSE[dtype]
    return all(torch.allclose(output, expected, rtol=tolerance, atol=tolerance) for output in outputs)
