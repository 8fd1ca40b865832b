"""Precision, strategy and optimizer of a run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_cgrpo.cli.configuration import Config, ConfigError, get


@dataclass(frozen=True)
class Execution:
    """Precision, strategy and optimizer of a run.

    Args:
        autocast: matrix products are bfloat16.
        sharding: "none", "ddp" (replicas) or "fsdp" (shares).
        strategy: the configuration's name for the sharding.
        state_bytes: the optimizer's bytes per byte of trainable weights.
        temporaries: the optimizer's step: "fused", "foreach" (all tensors at once) or "single".
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
    """Precision, strategy and optimizer of a configuration."""
    trainer: dict[str, Any] = config.get("trainer") or {}
    precision = str(trainer.get("precision") or "32-true")
    if precision not in ("32", "32-true", "bf16", "bf16-mixed", "64", "64-true"):
        raise ConfigError(f"Expected precision 32-true, bf16-mixed or 64-true, but got {precision}.")
    cpu = trainer.get("accelerator") == "cpu"
    states, temporaries = optimizer_state(module, cpu)
    strategy = trainer.get("strategy", "auto")
    name = str(get(strategy, "class_path") or strategy)
    short = name.rpartition(".")[2].lower()
    sharding = "none" if gpus == 1 else "ddp"
    if "fsdp" in short or "modelparallel" in short or "shard" in short:
        sharding = "fsdp"
    elif short not in ("auto", "singledevicestrategy") and not short.startswith("ddp"):
        raise ConfigError(f"Expected a strategy that is auto, DDP or FSDP, but got '{name}'.")
    double = precision.startswith("64")
    if double and sharding == "fsdp" and name != "fsdp2":  # Lightning refuses it, too.
        raise ConfigError(f"Expected precision 32-true or bf16-mixed with {name}, but got {precision}, try fsdp2.")
    return Execution(
        gpus, "cpu" if cpu else "cuda", precision.startswith("bf16"), sharding, name, states, temporaries, double
    )


def optimizer_state(module: Any, cpu: bool) -> tuple[float, str]:
    """`Execution.state_bytes`, measured by a step on a small matrix (AdamW: 2), and `Execution.temporaries`."""
    weight = nn.Parameter(torch.ones(64, 64))
    optimizer = module.make_optimizer([weight])
    weight.grad = torch.ones(64, 64)
    optimizer.step()
    state = sum(v.nbytes for v in optimizer.state[weight].values() if torch.is_tensor(v) and v.dim())
    group = optimizer.param_groups[0]
    foreach = group.get("foreach")
    if foreach is None:
        foreach = not cpu and "foreach" in inspect.signature(type(optimizer)).parameters
    return state / weight.nbytes, "fused" if group.get("fused") else "foreach" if foreach else "single"
