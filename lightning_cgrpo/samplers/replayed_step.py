"""A step whose tensors stay in place, replayed as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lightning_cgrpo.core.distributed import rank_zero_warn

Step = Callable[[], None]


class ReplayedStep:
    """Calls a step: the first time kernel by kernel, so that libraries are ready, and then by a graph of all kernels.

    Devices without graphs call the step each time.

    Attributes:
        captures: graphs that were made, at most one.
    """

    def __init__(self, step: Step, kind: str) -> None:
        self._step = step
        self._capture = CAPTURE.get(kind)
        self._replay: Step | None = None
        self._ready = False
        self.captures = 0

    def __call__(self) -> None:
        if self._capture is None or not self._ready:
            self._ready = True
            self._step()
            return
        if self._replay is None:
            self.captures += 1
            self._replay = self._capture(self._step)
        self._replay()


def _capture_graph(step: Step) -> Step:
    """The replay of a step's graph; the step itself where CUDA refuses to capture it."""
    stream = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    try:
        # A capture computes nothing. Other threads, such as a data loader's, may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    except Exception as error:  # of PyTorch or the model: shapes that depend on data, as of mixtures of experts
        torch.cuda.set_stream(stream)  # PyTorch leaves its own after an error
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        rank_zero_warn(f"Generation launches its kernels one by one, because no CUDA graph takes the model: {reason}")
        return step
    return graph.replay


CAPTURE: dict[str, Callable[[Step], Step]] = {"cuda": _capture_graph}
"""How a step is captured, by kind of device."""
