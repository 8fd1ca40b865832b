"""The flash kernel on a packed row, against the CPU's float64."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.layout import Layout
from lightning_cgrpo.policies.shared_prefix.varlen import runs_flash

HEADS, KINDS, WIDTH = 12, 2, 128
SCALE = WIDTH**-0.5


def attended(device: torch.device | str, dtype: torch.dtype) -> list[Tensor]:
    """Attention of 4 prompts with 8 answers each, and the gradients of queries, keys and values."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, 300, (4,), generator=draw)
    answers = torch.randint(1, 200, (32,), generator=draw)
    layout = Layout.of(prompts, answers, torch.arange(4).repeat_interleave(8), device=device)
    size = layout.position_ids.shape[1]
    # Rounded to bfloat16 on both sides, so that only the kernel's own rounding is measured.
    tensors = [
        torch.randn(size, heads, WIDTH, generator=draw).bfloat16().to(device, dtype).requires_grad_()
        for heads in (HEADS, KINDS, KINDS)
    ]
    weights = torch.randn(size, HEADS, WIDTH, generator=draw).bfloat16().to(device, dtype)
    out = PackedAttention(layout)(0, *tensors, SCALE)
    return [out.detach(), *torch.autograd.grad(out, tensors, weights)]


def flash_errors(device: torch.device) -> dict[str, float | str]:
    """Largest errors relative to the largest value, and the milliseconds of a second pass on the GPU."""
    if device.type != "cuda" or not runs_flash(torch.zeros(1, 1, WIDTH, dtype=torch.bfloat16, device=device)):
        return {"skipped": "no flash kernel here"}
    computed = attended(device, torch.bfloat16)
    expected = attended("cpu", torch.float64)
    errors = [
        float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in zip(computed, expected, strict=True)
    ]
    torch.cuda.synchronize()
    started = time.perf_counter()
    attended(device, torch.bfloat16)
    torch.cuda.synchronize()
    names = ("values", "of_queries", "of_keys", "of_values")
    return {**dict(zip(names, errors, strict=True)), "milliseconds": 1e3 * (time.perf_counter() - started)}
