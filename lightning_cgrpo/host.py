"""Copies between the host and a device, with as few waits as possible."""

from __future__ import annotations

import torch
from torch import Tensor


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Copies of integer or bool tensors on the CPU, in one transfer, because the host waits for each.

    Tensors that are on the CPU aren't copied.
    """
    there = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not there:
        return list(tensors)
    packed = torch.cat([tensor.flatten().long() for tensor in there]).cpu()
    parts = iter(packed.split([tensor.numel() for tensor in there]))
    return [
        tensor if tensor.device.type == "cpu" else next(parts).view(tensor.shape).to(tensor.dtype) for tensor in tensors
    ]
