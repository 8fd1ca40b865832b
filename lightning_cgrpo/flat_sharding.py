"""The first version of FSDP (Lightning's `FSDPStrategy`), which makes one flat vector of a layer's weights and cuts it.

Where `sharding` is the same in place, this puts a wrapper around each layer and one around the policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import CustomPolicy

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies import Policy


def wrap(policy: Policy, strategy: FSDPStrategy, mixed: bool) -> Policy:
    """The policy in a wrapper, which hands on what it doesn't have itself; see `sharding.shard`.

    Raises:
        UserError: some weights are frozen, as adapters freeze the others.
    """
    if len({parameter.requires_grad for parameter in policy.parameters()}) > 1:
        raise UserError("Expected all weights to be trained under FSDPStrategy, but some aren't, try strategy: fsdp2.")
    layers = set(policy.layers())
    precision = MixedPrecision(
        torch.bfloat16, torch.float32, cast_forward_inputs=False, cast_root_forward_inputs=False
    )  # not Lightning's, which rounds buffers, too: the frequencies of rotary positions
    wrapper = FullyShardedDataParallel(
        policy,
        sharding_strategy=strategy.sharding_strategy,
        cpu_offload=strategy.cpu_offload,
        mixed_precision=precision if mixed else None,
        device_id=strategy.root_device,
        **{**strategy.kwargs, "auto_wrap_policy": CustomPolicy(lambda module: module in layers)},
    )
    return cast(Policy, wrapper)


def is_wrapped(module: nn.Module) -> bool:
    """Whether it is such a wrapper."""
    return isinstance(module, FullyShardedDataParallel)


@contextmanager
def unwrapped(policy: Policy) -> Iterator[Policy]:
    """Within it the weights are whole and without wrappers; see `sharding.unsharded`."""
    children = [
        (parent, name, child)
        for parent in policy.modules()
        for name, child in parent.named_children()
        if parent is not policy and isinstance(child, FullyShardedDataParallel)
    ]
    with FullyShardedDataParallel.summon_full_params(policy, writeback=False):
        for parent, name, child in children:
            parent._modules[name] = child.module
        try:
            yield cast(FullyShardedDataParallel, policy).module  # type: ignore[misc]
        finally:
            for parent, name, child in children:
                parent._modules[name] = child


def total_norm(gradients: list[Tensor], device: torch.device) -> Tensor:
    """The norm of gradients of which this process has a part. Collective."""
    square = torch.zeros((), dtype=torch.float64, device=device)
    if gradients:
        square = nn.utils.get_total_norm(gradients).double() ** 2
    return all_sum(square).sqrt()


def gathered(policy: Policy) -> dict[str, Tensor]:
    """All weights by name on the first process's CPU; see `sharding.gathered`."""
    # torch's full state dict crashes where weights are on the CPU already.
    with unwrapped(policy) as plain:
        named = plain.named_parameters() if world()[0] == 0 else ()
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in named}
