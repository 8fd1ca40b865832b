"""The measured device: a GPU, or else a pretended GPU; and times, of host and device apart."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Measured = dict[str, Any]


@dataclass
class Place:
    """A part's device.

    Args:
        device: of the tensors.
        options: command-line options that select the device.
        tiny: measure in small, to see that nothing fails.
        waits: the host's waits by kind and line, counted by the pretended device.
        machine: the pretended device.
    """

    device: torch.device
    options: tuple[str, ...]
    tiny: bool = True
    waits: Counter[Any] = field(default_factory=Counter)
    machine: Any = None

    @property
    def pretended(self) -> bool:
        return self.machine is not None

    def synchronize(self) -> None:
        if not self.pretended:
            torch.cuda.synchronize()

    @contextmanager
    def half(self) -> Iterator[None]:
        """Context of bf16-mixed, which the pretended device lacks."""
        if self.pretended:
            yield
            return
        with torch.autocast(self.device.type, torch.bfloat16):
            yield

    def seconds(self, call: Callable[[], object], repeats: int = 1) -> float:
        """The least seconds of a call, until the device is done."""
        least = float("inf")
        for _ in range(repeats):
            self.synchronize()
            started = time.perf_counter()
            call()
            self.synchronize()
            least = min(least, time.perf_counter() - started)
        return least

    def traced(self, call: Callable[[], object], steps: int = 1) -> Measured:
        """Milliseconds and kernels of a step, and the kernels that take longest, after a first call.

        The wall's milliseconds beyond the device's are those that the device waits for the host. On the pretended
        device, kernels are operations that the host launches.
        """
        call()
        wall = self.seconds(call)
        if self.pretended:
            before = self.machine.operations
            call()
            return {"wall_ms": round(1e3 * wall / steps, 3), "launched": (self.machine.operations - before) / steps}
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as trace:  # events of the CPU would slow the host
            self.seconds(call)
        events = [event for event in trace.key_averages() if event.self_device_time_total > 0]
        longest = sorted(events, key=lambda event: event.self_device_time_total, reverse=True)[:12]
        return {
            "wall_ms": round(1e3 * wall / steps, 3),
            "device_ms": round(sum(event.self_device_time_total for event in events) / 1e3 / steps, 3),
            "kernels": round(sum(event.count for event in events) / steps, 1),
            "longest_ms": {event.key[:60]: round(event.self_device_time_total / 1e3 / steps, 4) for event in longest},
        }


class Attempts:
    """Measurements of a part: a failure leaves the others, and a part that is cut has printed the lines so far."""

    def __init__(self) -> None:
        self.results: Measured = {}

    def __call__(self, name: str, measure: Callable[[], Measured]) -> None:
        try:
            self.results[name] = measure()
        except Exception as error:  # of one measurement
            self.results[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(json.dumps(self.results), file=sys.__stdout__, flush=True)

    def result(self) -> Measured:
        failed = any(isinstance(result, dict) and "error" in result for result in self.results.values())
        return {"passed": not failed, **self.results}


@contextmanager
def place(tiny: bool) -> Iterator[Place]:
    """The first GPU, or else the tests' pretended device, which generates by pages and graphs, too."""
    if torch.cuda.is_available():
        yield Place(torch.device("cuda", 0), ("--trainer.accelerator=gpu", "--trainer.devices=1"), tiny)
        return
    from lightning_cgrpo.samplers import replayed_step, transformers_engine
    from tests.pretended_device import DEVICE, NAME, Graph, pretending

    transformers_engine.IN_PAGES.add(NAME)
    replayed_step.CAPTURE[NAME] = Graph.captured
    with pretending() as machine:
        options = f"--trainer.accelerator={NAME}", f"--trainer.strategy={NAME}"
        yield Place(DEVICE, options, True, machine.waits, machine)
