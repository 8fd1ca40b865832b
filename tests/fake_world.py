"""Several processes as threads of a test: `torch.distributed`, faked for this package, which records each reduction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_cgrpo.core import distributed

SECONDS = 20.0


class FakeDist:
    """The part of `torch.distributed` that `core.distributed` calls, among threads.

    Attributes:
        reductions: by rank, names and sizes of the collectives in their order.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.reductions: list[list[tuple[str, Any]]] = [[] for _ in range(size)]
        self.barrier = threading.Barrier(size)
        self._own = threading.local()
        self._slots: list[Any] = [None] * size

    def enter(self, rank: int) -> None:
        self._own.rank = rank

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return hasattr(self._own, "rank")

    def get_rank(self) -> int:
        return int(self._own.rank)

    def get_world_size(self) -> int:
        return self.size

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._exchanged("all_reduce", tensor.clone(), tuple(tensor.shape))).sum(0))

    def all_gather_object(self, values: list[Any], value: Any) -> None:
        values[:] = self._exchanged("all_gather_object", value, None)

    def gather_object(self, value: Any, values: list[Any] | None) -> None:
        every = self._exchanged("gather_object", value, None)
        assert (values is None) == (self.get_rank() > 0)
        if values is not None:
            values[:] = every

    def broadcast_object_list(self, values: list[Any]) -> None:
        values[:] = self._exchanged("broadcast_object_list", list(values), None)[0]

    def _exchanged(self, name: str, value: Any, size: Any) -> list[Any]:
        rank = self.get_rank()
        self.reductions[rank].append((name, size))
        self._slots[rank] = value
        self.barrier.wait(SECONDS)
        every = list(self._slots)
        self.barrier.wait(SECONDS)
        return every


def in_processes(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[int], Any], size: int = 2
) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Results of ``function(rank)`` by rank, and the collectives, which all processes call in equal order."""
    fake = FakeDist(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        fake.enter(rank)
        try:
            results[rank] = function(rank)
        except BaseException as error:
            errors.append(error)
            fake.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "dist", fake)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    others = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (others or errors)[0]
    assert all(of == fake.reductions[0] for of in fake.reductions), fake.reductions
    return results, fake.reductions[0]
