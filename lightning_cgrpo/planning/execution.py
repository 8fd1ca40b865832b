"""How a run keeps and spreads its numbers: precision, strategy and optimizer."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_cgrpo.cli.configuration import Config, ConfigError


@dataclass(frozen=True)
class Execution:
    """How the numbers are kept and spread.

    Args:
        gpus: processes, a GPU each.
        device: "cuda" or "cpu".
        autocast: whether products are taken in bfloat16 (bf16-mixed).
        sharding: "none", "ddp" (replicas) or "fsdp" (weights, gradients and the optimizer's state in shares).
        strategy: as the configuration names it.
        state_bytes: that the optimizer keeps for every byte of trainable weights.
        temporaries: how its step works: "fused", "foreach" (all tensors at once) or "single" (one after the other).
        double: whether all weights are float64 (64-true).
    """

    gpus: int
    device: str
    autocast: bool
    sharding: str
    strategy: str
    state_bytes: float
    temporaries: str
    double: bool = False


def execution(config: Config, module: LightningModule, gpus: int) -> Execution:
    """Precision, strategy and optimizer of a configuration.

    Args:
        gpus: processes.

    Raises:
        ConfigError: for a strategy or precision that this can't tell of.
    """
    trainer: dict[str, Any] = config.get("trainer") or {}
    precision = str(trainer.get("precision") or "32-true")
    if precision not in ("32", "32-true", "bf16", "bf16-mixed", "64", "64-true"):
        raise ConfigError(f"Expected precision 32-true, bf16-mixed or 64-true, but got {precision}.")
    cpu = trainer.get("accelerator") == "cpu"
    states, temporaries = optimizer_state(module, cpu)
    sharding, name = _sharding(trainer.get("strategy", "auto"), gpus)
    double = precision.startswith("64")
    if double and sharding == "fsdp" and name != "fsdp2":  # Lightning refuses it, too
        raise ConfigError(f"Expected precision 32-true or bf16-mixed with {name}, but got {precision}, try fsdp2.")
    return Execution(
        gpus, "cpu" if cpu else "cuda", precision.startswith("bf16"), sharding, name, states, temporaries, double
    )


def _sharding(strategy: Any, gpus: int) -> tuple[str, str]:
    name = str(strategy.get("class_path") if isinstance(strategy, dict) else strategy)
    short = name.rpartition(".")[2].lower()
    if "fsdp" in short or "modelparallel" in short or "shard" in short:
        return "fsdp", name
    if short not in ("auto", "singledevicestrategy") and not short.startswith("ddp"):
        raise ConfigError(f"Expected a strategy that is auto, DDP or FSDP, but got '{name}'.")
    return ("none" if gpus == 1 else "ddp"), name


def optimizer_state(module: Any, cpu: bool) -> tuple[float, str]:
    """Bytes that the optimizer keeps per byte of weights, tried on a small matrix, and how its step works.

    AdamW keeps two moments of the weights' dtype: 2.
    """
    size = 64
    weight = nn.Parameter(torch.ones(size, size))
    optimizer = module.make_optimizer([weight])
    weight.grad = torch.ones(size, size)
    optimizer.step()
    state = sum(
        v.numel() * v.element_size() for v in optimizer.state[weight].values() if torch.is_tensor(v) and v.dim()
    )
    group = optimizer.param_groups[0]
    if group.get("fused"):
        how = "fused"
    elif group.get("foreach") or (group.get("foreach") is None and not cpu and _has_foreach(optimizer)):
        how = "foreach"
    else:
        how = "single"
    return state / (weight.numel() * weight.element_size()), how


def _has_foreach(optimizer: torch.optim.Optimizer) -> bool:
    return "foreach" in inspect.signature(type(optimizer)).parameters
