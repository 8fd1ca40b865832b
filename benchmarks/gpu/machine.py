"""The machine: versions, the time of a launch and of a graph, memory's rate, and products."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version

import torch
from torch.nn.functional import linear

from benchmarks.gpu.device import Measured, Place

LAUNCHES = 700
"""Kernels of a decoded token of before."""


def machine(where: Place) -> Measured:
    result: Measured = {name: version(name) for name in ("torch", "lightning", "transformers")}
    result |= {"python": platform.python_version(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    result["device"] = "pretended" if where.pretended else torch.cuda.get_device_name(where.device)
    small = torch.zeros(32, device=where.device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            small.add_(1)

    launches()
    started = time.perf_counter()
    launches()
    result["microseconds_a_launch"] = round((time.perf_counter() - started) / LAUNCHES * 1e6, 2)
    if not where.pretended:
        where.synchronize()
        result["gigabytes"] = round(torch.cuda.get_device_properties(where.device).total_memory / 1e9, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launches()
        graph.replay()
        result["microseconds_a_kernel_of_a_graph"] = round(where.seconds(graph.replay, 5) / LAUNCHES * 1e6, 2)
    size = 2**16 if where.tiny else 2**29
    one, other = (torch.empty(size, dtype=torch.uint8, device=where.device) for _ in range(2))
    result["copied_gigabytes_per_second"] = round(2 * size / where.seconds(lambda: one.copy_(other), 5) / 1e9, 1)
    width = 64 if where.tiny else 8192
    matrix = torch.ones(width, width, device=where.device, dtype=torch.bfloat16)
    result["teraflops_bfloat16"] = round(2 * width**3 / where.seconds(lambda: matrix @ matrix, 5) / 1e12, 2)
    for rows, inside, outside in ((32, 896, 4864), (32, 1536, 8960), (128, 1536, 8960)):
        states = torch.ones(rows, inside, device=where.device, dtype=torch.bfloat16)
        weight = torch.ones(outside, inside, device=where.device, dtype=torch.bfloat16)
        seconds = where.seconds(lambda s=states, w=weight: [linear(s, w) for _ in range(5)], 3)  # type: ignore[misc]
        result[f"microseconds of a layer {rows} x {inside} x {outside}"] = round(1e6 * seconds / 5, 2)
    return result
