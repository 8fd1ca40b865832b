"""Matrix products of rollouts on the CPU, by oneDNN instead of MKL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.policies.text_policy import TextPolicy

FEWEST = 2**17
"""Weights of a layer below which calling oneDNN takes longer than it saves."""
ROWS = 8
"""Rows of a product for which oneDNN arranges the weights; the arrangement suits 1 to 128 rows."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Largest difference that rounding explains, by dtype of the weights."""


@contextmanager
def arranged_weights(policy: TextPolicy) -> Iterator[None]:
    """Context: on the CPU, large linear layers read their weights in oneDNN's arrangement.

    A decoded step reads all weights for few rows. As they lie, a product spends most of its time on rearranging them.
    The arranged copies take the weights' memory again, so the context holds them for a rollout only. Weights must not
    change inside. Passes with gradients and weights that FSDP shards stay with PyTorch's products.
    """
    layers = []
    if policy.device.type == "cpu" and not is_sharded(policy):
        layers = [module for module in policy.modules() if type(module) is nn.Linear and _gains(module)]
    for layer in layers:
        layer.__dict__["forward"] = _Product(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


class _Product:
    """The forward of a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self._arranged = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)

    def __call__(self, states: Tensor) -> Tensor:
        layer = self.layer
        if torch.is_grad_enabled() or states.dtype != layer.weight.dtype or not states.numel():
            return linear(states, layer.weight, layer.bias)
        return _product(states, self._arranged, layer.bias)


def _product(states: Tensor, arranged: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise(states, arranged, bias, "none", [], "")
    return made


def _gains(layer: nn.Linear) -> bool:
    # A layer with a forward of its own, such as a hook's, stays.
    return layer.weight.numel() >= FEWEST and "forward" not in layer.__dict__ and _works(layer.weight.dtype)


@cache
def _works(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN gives PyTorch's products, tried on a small one."""
    if dtype not in CLOSE:
        return False
    draw = torch.Generator("cpu").manual_seed(0)
    shapes = (3, 32), (64, 32), (64,)
    states, weight, bias = (torch.randn(shape, generator=draw, device="cpu").to(dtype) for shape in shapes)
    try:
        found = _product(states, torch.ops.mkldnn._reorder_linear_weight(weight, ROWS), bias)
    except Exception:  # of PyTorch: oneDNN is not part of it, or lacks this dtype on this processor
        return False
    return torch.allclose(found, linear(states, weight, bias), rtol=CLOSE[dtype], atol=CLOSE[dtype])
