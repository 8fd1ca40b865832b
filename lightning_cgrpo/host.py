"""Copies between the host and a device, with as few waits as possible."""

from __future__ import annotations

import torch
from torch import Tensor


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Copies of integer or bool tensors on the CPU, in one transfer, because the host waits for each.

    Tensors that are on the CPU aren't copied.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    packed = torch.cat([tensor.flatten().long() for tensor in tensors]).cpu()
    parts = packed.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]
