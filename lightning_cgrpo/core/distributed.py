"""Collectives, which every process must call in equal order, and copies between host and device.

A single process communicates nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_cgrpo.core.errors import UserError

T = TypeVar("T")
_replicated = ContextVar("_replicated", default=False)


def world() -> tuple[int, int]:
    """This process's rank and the number of processes."""
    if dist.is_available() and dist.is_initialized() and not _replicated.get():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def rank_zero_warn(message: str) -> None:
    """Warn on the first process alone, as Lightning's function of this name, which this package's core can't import."""
    if dist.is_available() and dist.is_initialized():
        rank = dist.get_rank()
    else:
        # Before processes are connected, their launcher tells the rank.
        rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0)))
    if rank == 0:
        warnings.warn(message, stacklevel=2)


@contextmanager
def replicated() -> Iterator[None]:
    """Communicate nothing within, because every process already holds the values of all processes."""
    before = _replicated.set(True)
    try:
        yield
    finally:
        _replicated.reset(before)


def all_sum(tensor: Tensor) -> Tensor:
    """Elementwise sum over all processes, identical on each. Counts in float64 are exact up to 2^53."""
    if world()[1] == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_counts(count: int, device: torch.device) -> list[int]:
    """Every process's `count`, by rank."""
    if world()[1] == 1:
        return [count]
    return gather_rows(torch.tensor([count], device=device))[:, 0].tolist()


def gather_rows(row: Tensor) -> Tensor:
    """Every process's integers ``[n]``, by rank: ``[processes, n]``."""
    rank, size = world()
    if size == 1:
        return row[None]
    rows = row.new_zeros(size, len(row))
    rows[rank] = row
    dist.all_reduce(rows)
    return rows


def all_sum_named(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars summed over all processes in one collective; names and their order must be equal on all."""
    if not sums:
        return {}
    total = all_sum(torch.stack([value.double() for value in sums.values()]))
    return dict(zip(sums, total.tolist(), strict=True))


def gather_means(logged: Mapping[str, Sequence[float]] | None) -> dict[str, float]:
    """Means by name over all processes, which may have different names; {} for None, which all processes have."""
    if logged is None:
        return {}
    together: dict[str, list[float]] = {}
    for values_by_name in gather_objects(logged):
        for name, values in values_by_name.items():
            together.setdefault(name, []).extend(values)
    return {name: sum(together[name]) / len(together[name]) for name in sorted(together)}


def gather_objects(value: T) -> list[T]:
    """Every process's picklable `value`, by rank."""
    size = world()[1]
    if size == 1:
        return [value]
    values: list[T | None] = [None] * size
    dist.all_gather_object(values, value)
    return values  # type: ignore[return-value]  # all are filled


def by_first(make: Callable[[], T]) -> T:
    """The picklable value that the first process makes, on all. Collective; its error is raised on all."""
    rank, size = world()
    if size == 1:
        return make()
    value: T | None = None
    error: Exception | None = None
    message: str | None = None
    if rank == 0:
        try:
            value = make()
        except Exception as raised:
            error = raised
            message = str(raised)
    # The first process sends the value, or the message of its error.
    sent: list[Any] = [value, message]
    dist.broadcast_object_list(sent)
    if error is not None:
        raise error
    value, message = sent
    if message is not None:
        raise UserError(message)
    return cast(T, value)


def gather_objects_on_first(value: T) -> list[T] | None:
    """Every process's picklable `value`, by rank, on the first process; None on other processes."""
    rank, size = world()
    if size == 1:
        return [value]
    values: list[T | None] | None = None if rank else [None] * size
    dist.gather_object(value, values)
    return values  # type: ignore[return-value]  # all are filled


def on_host(*tensors: Tensor) -> list[Tensor]:
    """Copies of integer or bool tensors on the CPU, in one transfer, because the host waits for each.

    Tensors that are on the CPU aren't copied.

    Raises:
        TypeError: a tensor has fractions, which one transfer of integers would cut.
    """
    if any(tensor.is_floating_point() for tensor in tensors):
        raise TypeError("Expected integer or bool tensors.")
    on_device = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    if not on_device:
        return list(tensors)
    # All tensors of the device in one row of integers, then each in its own shape and type.
    packed = torch.cat([tensor.flatten().long() for tensor in on_device]).cpu()
    parts = iter(packed.split([tensor.numel() for tensor in on_device]))
    copies = []
    for tensor in tensors:
        if tensor.device.type == "cpu":
            copies.append(tensor)
        else:
            copies.append(next(parts).view(tensor.shape).to(tensor.dtype))
    return copies
