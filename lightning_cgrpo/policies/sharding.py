"""A policy's network spread over the processes (FSDP): in shards for training, whole for a rollout, gathered to save.

`fully_shard` gathers a module's weights in the hooks around its `forward`, frees them after it, and reduces gradients
in those of the backward pass. Here a layer of the model is such a module, and the policy around all of them is the
root, which holds what is in no layer: embeddings, the last norm, the output layer. So a pass goes through the policy's
`forward`, every process has to make as many passes as the others (`RolloutModule.passes`), and what calls other methods
than `forward`, as generation does, needs the whole network (`unsharded`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.policy import Policy

TIMEOUT = timedelta(minutes=30)
"""How long processes wait for each other; answers of one may take much longer than those of another."""

FIRST_FSDP = "Expected trainer.strategy without the first version of FSDP, but got {}, try --trainer.strategy=fsdp2."


class FSDP2Strategy(ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` with all processes sharing one copy of the network; short: ``fsdp2``.

    Args:
        save_distributed_checkpoint: a checkpoint is a directory, to which every process writes its part; otherwise it
            is a single file, for which the first one gathers weights and moments in its CPU memory.
        process_group_backend: nccl on GPUs and gloo on CPUs by default.
        timeout: how long processes wait for each other.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()


if "fsdp2" not in StrategyRegistry.available_strategies():
    StrategyRegistry.register("fsdp2", FSDP2Strategy, description="One copy of the network over all processes.")


def shard(module: LightningModule) -> None:
    """Spread the weights of a module's policy and reference over the processes, if that is what its strategy does.

    For `configure_model`; harmless when called again. Under ``bf16-mixed`` weights are gathered and computed with as
    bfloat16; shards, sums of gradients and moments keep their dtype.

    Raises:
        UserError: the strategy is the first version of FSDP, or splits single matrices (tensor parallelism).
    """
    if module._trainer is None:
        return
    strategy, mixed = module.trainer.strategy, module.trainer.precision == "bf16-mixed"
    for name in ("policy", "reference"):
        policy = getattr(module, name, None)
        if isinstance(policy, Policy) and not is_sharded(policy):
            _shard(policy, strategy, mixed)


def _shard(policy: Policy, strategy: Strategy, mixed: bool) -> None:
    if isinstance(strategy, FSDPStrategy):
        raise UserError(FIRST_FSDP.format(type(strategy).__name__))
    if isinstance(strategy, ModelParallelStrategy):
        mesh = strategy.device_mesh
        if mesh["tensor_parallel"].size() > 1:
            raise UserError(
                "Expected ModelParallelStrategy to have tensor_parallel_size 1, but got "
                f"{mesh['tensor_parallel'].size()}, try strategy: fsdp2."
            )
        precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if mixed else None,
            reduce_dtype=torch.float32 if mixed else None,
            cast_forward_inputs=False,  # log-probabilities of the last pass among them
        )
        for module in (*reversed(policy.layers()), policy):  # the inner ones first
            fully_shard(module, mesh=mesh["data_parallel"], mp_policy=precision, reshard_after_forward=True)


def is_sharded(module: nn.Module) -> bool:
    """Whether its weights are spread over the processes, also where they happen to be whole at the moment."""
    return isinstance(module, FSDPModule)


def in_shards(module: nn.Module) -> bool:
    """Whether its weights are spread over the processes now, so that a pass through it needs all of these."""
    return isinstance(next(module.parameters(), None), DTensor)


@contextmanager
def unsharded(policy: Policy) -> Iterator[None]:
    """Within it the network is whole and plain on every process, as if it had never been sharded, for inference only.

    Collective: all processes take part when it begins; within it none needs another.
    """
    # What FSDP does around every `forward` costs time for each token, and layers that ran before their root would each
    # take themselves for one.
    parts = [module for module in policy.modules() if isinstance(module, FSDPModule)] if is_sharded(policy) else []
    hooks = [(part, part._forward_pre_hooks, part._forward_hooks) for part in parts]
    for part in parts:
        part.unshard()
        part._forward_pre_hooks, part._forward_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        for part, before, after in hooks:
            part._forward_pre_hooks, part._forward_hooks = before, after
            part.reshard()


def total_norm(policy: Policy) -> Tensor:
    """The norm of a policy's gradients, wherever they are. Collective where it is sharded."""
    return whole(nn.utils.get_total_norm([p.grad for p in policy.parameters() if p.grad is not None]))


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over the processes, on each. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(policy: Policy) -> dict[str, Tensor] | None:
    """All weights of a sharded policy, by name, on the first process's CPU, empty on the others; None if it isn't one.

    Collective.
    """
    if not is_sharded(policy):
        return None
    weights = get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    # Gathered twice, what was one parameter with two names is two.
    once = {name for name, _ in policy.named_parameters()}
    again = {name for name, _ in policy.named_parameters(remove_duplicate=False)} - once
    return {name: weight for name, weight in weights.items() if isinstance(weight, Tensor) and name not in again}
