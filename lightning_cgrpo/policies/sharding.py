"""Sharding of a policy over processes (FSDP).

`fully_shard` gathers weights around `forward`. Every process makes equally many passes (`equal_passes`).
Other methods, such as generation, need the whole network (`unsharded`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from lightning_cgrpo.core.distributed import gather_counts
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.policy import Policy

TIMEOUT = timedelta(minutes=30)
"""Longest wait for other processes, whose answers may take very different times."""
LOADING_SHARE = 0.8
"""Share of the free memory that processes take while they load whole weights."""


class FSDP2Strategy(ModelParallelStrategy):
    """`ModelParallelStrategy` with one copy of the network, split over all processes; short: ``fsdp2``.

    Args:
        save_distributed_checkpoint: write a part per process; false writes a single file, gathered in the first
            process's CPU memory.
    """

    def __init__(self, save_distributed_checkpoint: bool = True, timeout: timedelta = TIMEOUT) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timeout,
        )

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


if "fsdp2" not in StrategyRegistry.available_strategies():
    StrategyRegistry.register("fsdp2", FSDP2Strategy, description="One copy of the network over all processes.")


def shard(module: LightningModule) -> None:
    """Shard a module's policy, reference and critic if its strategy shards.

    Under ``bf16-mixed`` weights are gathered as bfloat16; all else keeps its dtype.

    Raises:
        UserError: the strategy uses tensor parallelism.
    """
    if module._trainer is None:
        return
    strategy = module.trainer.strategy
    if not isinstance(strategy, ModelParallelStrategy):
        return
    mesh = strategy.device_mesh
    if (size := mesh["tensor_parallel"].size()) > 1:
        raise UserError(
            f"Expected ModelParallelStrategy to have tensor_parallel_size 1, but got {size}, try strategy: fsdp2."
        )
    mixed = module.trainer.precision == "bf16-mixed"
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if mixed else None,
        reduce_dtype=torch.float32 if mixed else None,
        cast_forward_inputs=False,  # the inputs include old log-probabilities
    )
    estimator = getattr(module, "estimator", None)
    networks: list[Any] = [
        getattr(module, "policy", None),
        getattr(module, "reference", None),
        getattr(estimator, "critic", None),
    ]
    for network in networks:
        if hasattr(network, "layers") and not is_sharded(network):
            for part in (*reversed(network.layers()), network):  # inner layers first
                fully_shard(part, mesh=mesh["data_parallel"], mp_policy=precision, reshard_after_forward=True)


@contextmanager
def in_turn(module: LightningModule) -> Iterator[None]:
    """Context: a machine's processes read and shard weights, as many at once as its memory holds whole. Collective.

    The first process is alone, so that its memory shows what a process needs. Without a sharding strategy the context
    does nothing.

    Raises:
        UserError: the strategy is the first version of FSDP.
    """
    trainer = module._trainer
    if trainer is not None and isinstance(trainer.strategy, FSDPStrategy):
        raise UserError(
            "Expected trainer.strategy without the first version of FSDP, but got "
            f"{type(trainer.strategy).__name__}, try --trainer.strategy=fsdp2."
        )
    if trainer is None or not isinstance(trainer.strategy, ModelParallelStrategy):
        yield
        return
    others = trainer.strategy.num_processes - 1
    device = trainer.strategy.root_device
    # `finally`, because an error must not leave the other processes waiting.
    if trainer.local_rank == 0:
        # The first process loads alone, and then waits for the turns of all others.
        try:
            yield
        finally:
            at_once = min(gather_counts(fitting_processes(others), device))
            _wait_turns(count_turns(others, at_once))
        return
    # Another process waits for the turns before its own, loads, and waits for the turns that are left.
    at_once = min(gather_counts(others, device))
    before = count_turns(trainer.local_rank, at_once) - 1
    _wait_turns(before)
    try:
        yield
    finally:
        _wait_turns(count_turns(others, at_once) - before)


def count_turns(processes: int, at_once: int) -> int:
    """Turns in which so many processes have loaded."""
    return -(-processes // at_once)


def fitting_processes(most: int) -> int:
    """Further processes, from 1 to `most`, that have room for as much memory as this process had at its peak."""
    try:
        peak = _read_kilobytes("/proc/self/status", "VmHWM")
        free = _read_kilobytes("/proc/meminfo", "MemAvailable")
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:  # another system than Linux
        return 1
    free = min([1024 * free, *free_in_groups(groups, Path("/sys/fs/cgroup"))])
    return max(1, min(most, int(LOADING_SHARE * free / (1024 * peak))))


def free_in_groups(groups: str, root: Path) -> Iterator[int]:
    """Bytes that are left below each memory limit of this process's cgroups, such as SLURM's or a container's.

    Args:
        groups: content of ``/proc/self/cgroup``.
        root: of the mounted groups.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            folder = root
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            folder = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own_group = folder / path.lstrip("/")  # a container may not see its own folder, but a parent
        for group in (own_group, *own_group.parents):
            try:
                limit, used = ((group / name).read_text().strip() for name in names)
            except OSError:
                continue
            if limit != "max":
                yield max(int(limit) - int(used), 0)


def _read_kilobytes(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1])


def _wait_turns(times: int) -> None:
    for _ in range(times):
        dist.barrier()


def is_sharded(module: object) -> bool:
    """True for a sharded module, even while its weights are whole."""
    return isinstance(module, FSDPModule)


def in_shards(module: nn.Module) -> bool:
    """True while the weights are in shards, so that a pass needs all processes."""
    return isinstance(next(module.parameters(), None), DTensor)


@contextmanager
def unsharded(policy: Policy) -> Iterator[None]:
    """Make a sharded network whole on every process, for inference. Entering is collective, the body is not."""
    # The hooks are removed, because they cost time per token, and a layer that runs before the root takes itself for a
    # root.
    parts = []
    if is_sharded(policy):
        parts = [module for module in policy.modules() if isinstance(module, FSDPModule)]
    hooks = [(part, part._forward_pre_hooks, part._forward_hooks) for part in parts]
    for part in parts:
        part.unshard()
        part._forward_pre_hooks = OrderedDict()
        part._forward_hooks = OrderedDict()
    try:
        yield
    finally:
        for part, before, after in hooks:
            part._forward_pre_hooks = before
            part._forward_hooks = after
            part.reshard()


def equal_passes(network: nn.Module, pieces: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Pieces for equally many passes on every process, if the network is sharded. Collective.

    An added, empty piece needs a pass of the network's placeholder.
    """
    if not is_sharded(network):
        return pieces
    most = max(gather_counts(len(pieces), device))
    missing = most - len(pieces)
    return [*pieces, *(pieces[0][:0] for _ in range(missing))]


def total_norm(network: nn.Module) -> Tensor:
    """Norm of a network's gradients; collective if the network is sharded."""
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    return whole_tensor(nn.utils.get_total_norm(gradients))


def whole_tensor(tensor: Tensor) -> Tensor:
    """The full tensor on each process; collective if the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_weights(policy: Policy) -> dict[str, Tensor] | None:
    """All weights by name on the first process's CPU, {} elsewhere (collective); None if not sharded."""
    if not is_sharded(policy):
        return None
    weights = get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    # A parameter with two names has been gathered twice.
    first_names = {name for name, _ in policy.named_parameters()}
    all_names = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    repeated = all_names - first_names
    return {name: weight for name, weight in weights.items() if isinstance(weight, Tensor) and name not in repeated}
