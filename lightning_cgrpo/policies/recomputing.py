"""Layers that recompute their activations in the backward pass."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recomputable_layers(model: Any) -> list[nn.Module]:
    """Layers of decoder and vision tower that can recompute their activations."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def recompute_activations(model: Any) -> None:
    """Make layers recompute their activations in the backward pass.

    Transformers would do it for layers in training mode, whose dropout would then act.
    """
    for layer in recomputable_layers(model):
        layer.forward = MethodType(_recomputed_forward, layer)  # a copy of the layer has a method of its own


def _recomputed_forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(layer).forward, layer)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
