"""A pretended GPU, held on the CPU: values are real, devices follow CUDA's rules, waits of the host are counted.

`Pretended` wraps a CPU tensor and reports `DEVICE`, a device of PyTorch's backend for extensions (PrivateUse1). Within
`pretending()` every operation on the device is checked by CUDA's rules, computed on the CPU, and wrapped again.
Kernels, precisions, memory and autocast are not a GPU's.

Lightning trains on the device under ``accelerator="pretended", strategy="pretended"``.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry, CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


NAME = "pretended"
_setup_privateuseone_for_python_backend(NAME, Backend())
DEVICE = torch.device(NAME, 0)

aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
READ = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
# The shape of the result depends on values.
SHAPED = {aten.nonzero.default, aten.masked_select.default, aten.bincount.default, aten.repeat_interleave.Tensor}
SHAPED |= {aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default}


class DeviceError(RuntimeError):
    """CUDA would refuse the operation."""


class Pretended(Tensor):
    """A tensor on the device; `held` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        place = {"strides": held.stride(), "storage_offset": held.storage_offset(), "layout": held.layout}
        make = torch.Tensor._make_wrapper_subclass
        wrapper: Pretended = make(cls, held.size(), **place, dtype=held.dtype, device=DEVICE)
        wrapper.held = held
        return wrapper

    def __repr__(self, **options: Any) -> str:
        return f"Pretended({self.held})"

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.detach().clone().requires_grad_(self.requires_grad)  # because PyTorch's own reads the storage

    def tolist(self) -> Any:
        return self.cpu().tolist()  # because PyTorch's own refuses subclasses

    @classmethod
    def __torch_dispatch__(cls, operation: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise DeviceError(f"Expected {operation} on the pretended device within `pretending()`, but got it outside.")


class Machine(TorchDispatchMode):
    """Computes every operation on the device.

    Attributes:
        waits: how often the host waited for the device, by kind (see `wait`) and by the package's line that asked.
        operations: launched by the host, with views, and without the operations of a graph's replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.generator = torch.Generator().manual_seed(1_000_003)  # the device's own
        self.operations = 0
        self.graph: Graph | None = None  # that is captured now

    def __torch_dispatch__(self, operation: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in leaves((args, *kwargs.values())) if isinstance(leaf, Tensor)]
        there = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, Pretended)}
        target = kwargs.get("device")
        if not there and (target is None or target.type != NAME):
            return operation(*args, **kwargs)
        check(operation, args, kwargs, tensors)
        self.operations += 1
        if kind := wait(operation, args, kwargs):
            self.waits[kind, line_of_package()] += 1
            if self.graph is not None:
                raise DeviceError(f"A capture cannot wait for {operation}, at {line_of_package()}")
        options = {name: mapped(_held, value) for name, value in kwargs.items()}
        if target is not None:
            options["device"] = torch.device("cpu")
        if takes_generator(operation):
            options["generator"] = self.generator
        given = mapped(_held, args)
        result = operation(*given, **options) if self.graph is None else self.graph.call(operation, given, options)
        if operation is aten._to_copy.default and result is given[0]:
            result = result.clone()  # a copy to another device is never the tensor itself
        to_device, here = target is None or target.type == NAME, {id(tensor) for tensor in tensors}

        def wrapped(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or id(leaf) in here:
                return leaf  # a CPU tensor changed in place among them
            if id(leaf) in there:
                return there[id(leaf)]
            return Pretended(leaf) if to_device else leaf

        return mapped(wrapped, result)


class Graph:
    """Operations on the device, which a replay calls again on tensors in the same places, as a CUDA graph."""

    def __init__(self) -> None:
        self._calls: list[tuple[OpOverload, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def captured(cls, step: Callable[[], None]) -> Callable[[], None]:
        """Capture a step, which computes nothing; returns its replay."""
        machine = next(mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Machine))
        machine.graph = graph = cls()
        try:
            step()
        finally:
            machine.graph = None
            for tensor, before in graph._before.values():
                tensor.copy_(before)
        return graph.replay

    def call(self, operation: OpOverload, args: Any, options: Any) -> Any:
        for argument, value in zip(operation._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
                self._before.setdefault(whole.data_ptr(), (whole, whole.clone()))
        result = operation(*args, **options)
        self._calls.append((operation, args, options, result))
        return result

    def replay(self) -> None:
        for operation, args, options, result in self._calls:
            made = operation(*args, **options)
            for old, new in zip(leaves([result]), leaves([made]), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class NumbersOfTensors(TorchFunctionMode):
    """Reads the tensors in a list for `torch.tensor`, which can't read those of an extension."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.tensor and isinstance(args[0], (list, tuple)):
            args = mapped(lambda leaf: leaf.tolist() if isinstance(leaf, Pretended) else leaf, args)
        return function(*args, **(kwargs or {}))


def leaves(tree: Any) -> Iterator[Any]:
    """The parts of nested lists and tuples."""
    for part in tree:
        if isinstance(part, (list, tuple)):
            yield from leaves(part)
        else:
            yield part


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Nested lists and tuples with changed parts; PyTorch's `tree_map` would take half of an update's time."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(change, part) for part in tree])
    return change(tree)


@cache
def takes_generator(operation: OpOverload) -> bool:
    return any(argument.name == "generator" for argument in operation._schema.arguments)


def check(operation: OpOverload, args: Any, kwargs: Mapping[str, Any], tensors: list[Tensor]) -> None:
    """Refuse what CUDA refuses.

    Raises:
        DeviceError: the generator is the CPU's, or CPU tensors meet tensors on the device.
    """
    if kwargs.get("generator") is not None:
        raise DeviceError("Expected a 'cuda' device type for generator but found 'cpu'")
    here = [tensor for tensor in tensors if not isinstance(tensor, Pretended)]
    if operation in COPIES or not here or len(here) == len(tensors):
        return
    if operation in INDEXED:  # indices may be on the CPU
        here = [tensor for tensor in (args[0], *args[2:3]) if not isinstance(tensor, Pretended)]
    changes_here = operation._schema.is_mutable and not isinstance(args[0], Pretended)
    # Numbers, tensors without dimensions, may be on the CPU.
    if changes_here or any(tensor.dim() for tensor in here):
        raise DeviceError(
            f"Expected all tensors to be on the same device, but {operation} got CPU tensors of the shapes "
            f"{[tuple(tensor.shape) for tensor in here]}, at {line_of_package()}"
        )


def wait(operation: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Why the host waits for the device in an operation ("read", "shape" or "copy"), None if it does not."""
    if operation in READ:
        return "read"
    if operation in SHAPED:
        return "shape" if kwargs.get("output_size") is None else None
    if operation in INDEXED:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype == torch.bool for index in indices):
            return "shape"
        return None if all(isinstance(index, Pretended) for index in indices) else "copy"
    if operation not in COPIES:
        return None
    if operation is aten.copy_.default:
        across = isinstance(args[0], Pretended) != isinstance(args[1], Pretended)
        blocking = not any(args[2:3])
    else:
        target = kwargs.get("device")
        across = target is not None and isinstance(args[0], Pretended) != (target.type == NAME)
        blocking = not kwargs.get("non_blocking")
    return "copy" if across and blocking else None


def line_of_package() -> str:
    """The innermost line of lightning_cgrpo that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == "lightning_cgrpo":
            return f"{module}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def no_inference_mode(mode: bool = True) -> torch.set_grad_enabled:
    """Replaces `torch.inference_mode`, whose tensors PyTorch can't wrap."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and not mode)


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, Pretended) else leaf


@contextmanager
def pretending() -> Iterator[Machine]:
    """Within it the device works, and modules moved to it keep their tied weights."""
    swap, lift = torch.__future__.get_swap_module_params_on_conversion(), torch._C._only_lift_cpu_tensors()
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(…, device=DEVICE)` makes a CPU tensor and moves it
    try:
        with (
            patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"),  # transformers' threads do not pretend
            patch.object(torch, "inference_mode", no_inference_mode),
            Machine() as machine,
            NumbersOfTensors(),
        ):
            yield machine
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swap)
        torch._C._set_only_lift_cpu_tensors(lift)


class PretendedAccelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None: ...

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [DEVICE]


class PretendedStrategy(SingleDeviceStrategy):
    def __init__(self, **options: Any) -> None:
        super().__init__(DEVICE, **options)


AcceleratorRegistry.register(NAME, PretendedAccelerator, "A pretended GPU.")
StrategyRegistry.register(NAME, PretendedStrategy, "A pretended GPU.")
