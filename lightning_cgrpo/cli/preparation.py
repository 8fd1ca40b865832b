"""Before a run: find its checkpoint and set up the process."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo.checkpoints.files import best_of
from lightning_cgrpo.checkpoints.integrity import check_checkpoint
from lightning_cgrpo.cli.configuration import Config, ConfigError, get, is_class, short_class
from lightning_cgrpo.cli.key_check import NAMESPACES
from lightning_cgrpo.cli.method import method_of
from lightning_cgrpo.cli.run_folders import configuration_beside, find_checkpoint, last_checkpoint, log_beside
from lightning_cgrpo.errors import MissingExtraError
from lightning_cgrpo.policies.sharding import FIRST_FSDP

EVALUATIONS = {"validate": "Validating", "test": "Testing", "predict": "Predicting with"}
BEGINNINGS = {"fit": "Resuming from", "certify": "Certifying", "export": "Exporting", **EVALUATIONS}
TOLD = 3
"""Number of differing settings in a message."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def prepare(command: str, config: Config) -> None:
    """Resolve ``ckpt_path`` in `config`, print the starting weights, and set up the process.

    Raises:
        UserError: a bad checkpoint, number of processes, or the first version of FSDP.
    """
    _check_strategy(config)
    config.setdefault("weights_only", True)
    if torch.get_float32_matmul_precision() == "highest" and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    if command != "plan":
        _check_processes(config)
    _resolve_checkpoint(config)
    beginning = _beginning(command, config)
    if beginning is not None and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        print(beginning, flush=True)
    if command in EVALUATIONS:
        log_beside(config, command)
    quiet()
    reuse_blocks()
    import_names()


def import_names() -> None:
    """Import all classes with short names, because jsonargparse finds only imported classes.

    Classes of extras that are not installed are left out; a configuration that names one gets its error.
    """
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            with suppress(MissingExtraError):
                getattr(module, name)


def _check_strategy(config: Config) -> None:
    strategy = get(config, "trainer.strategy")
    if short_class(strategy).lower() in ("fsdp", "fsdp_cpu_offload", "fsdpstrategy"):
        raise ConfigError(FIRST_FSDP.format(get(strategy, "class_path") or strategy))


def _check_processes(config: Config) -> None:
    """Refuse a number of processes, from torchrun or SLURM, other than the configured number."""
    devices, nodes = get(config, "trainer.devices"), get(config, "trainer.num_nodes") or 1
    launched = os.environ.get("WORLD_SIZE"), os.environ.get("SLURM_NTASKS")
    for launcher, count in zip(("torchrun", "SLURM"), launched, strict=True):
        interactive = launcher == "SLURM" and os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
        if count is not None and not interactive and isinstance(devices, int) and devices * nodes != int(count):
            raise ConfigError(
                f"Expected trainer.devices x trainer.num_nodes to be the {count} processes of {launcher}, but got "
                f"{devices} x {nodes}, try --trainer.devices={int(count) // nodes}."
            )
    if nodes > 1 and launched == (None, None) and "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"Expected MASTER_ADDR and NODE_RANK in the environment for trainer.num_nodes={nodes}, but got none, try "
            "torchrun or SLURM on every node (docs/multi_gpu.md)."
        )


def _resolve_checkpoint(config: Config) -> None:
    """Replace ``last`` and ``best`` by a path, and check it before loading a model."""
    find_checkpoint(config)
    checkpoint = config.get("ckpt_path")
    if checkpoint is None or checkpoint in ("hpc", "registry"):
        return
    if checkpoint == "best":
        config["ckpt_path"] = str(best_of(last_checkpoint(config)))
    check_checkpoint(str(config["ckpt_path"]))


def _beginning(command: str, config: Config) -> str | None:
    checkpoint = config.get("ckpt_path")
    if checkpoint is None:
        if command not in EVALUATIONS:
            return None
        weights = get(config, "model.init_args.policy.init_args.model") or "drawn from the seed"
        return f"{EVALUATIONS[command]} the starting weights ({weights}); --ckpt_path=last takes what was trained."
    if command not in BEGINNINGS:
        return None
    text = f"{BEGINNINGS[command]} {checkpoint}{' (--ckpt_path=null starts anew)' if command == 'fit' else ''}."
    kept = configuration_beside(checkpoint)
    different = [] if kept is None else list(differences(method_of(kept), method_of(config)))
    if different:
        more = f", and {len(different) - TOLD} more" if len(different) > TOLD else ""
        text += f" It was trained with another configuration: {', '.join(different[:TOLD])}{more}."
    return text


def differences(before: Any, now: Any, path: str = "") -> list[str]:
    """``key: before -> now`` for each setting in which two methods differ.

    Settings missing in `now` are skipped, because `before` holds defaults too; missing
    constraints are differences.
    """
    before, now = ({"class_path": value} if is_class(value) else value for value in (before, now))
    both = isinstance(before, Mapping) and isinstance(now, Mapping)
    if both and before.get("class_path") == now.get("class_path"):
        keys = dict.fromkeys([*before, *now] if path.endswith("constraints") else now)
        keys.pop("class_path", None)
        parts = {key: path if key == "init_args" else f"{path}.{key}".lstrip(".") for key in keys}
        return [text for key, part in parts.items() for text in differences(before.get(key), now.get(key), part)]
    return [] if before == now else [f"{path}: {_short(before)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = str(value.get("class_path", "...") if isinstance(value, Mapping) else "none" if value is None else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def reuse_blocks() -> None:
    """Have glibc keep freed blocks (each up to 32 MiB, together 256 MiB) for the next tensors.

    New pages cost faults, which slow a small model's updates down.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # Another C library.
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 256 << 20)


def quiet() -> None:
    """Silence Lightning's advertisements, and warnings about intended settings."""
    for message in (
        "Using ModelCheckpoint with manual optimization",  # Resuming needs a checkpoint after the update.
        "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
        "The '.*_dataloader' does not have many workers",
    ):
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "Tip:" not in record.getMessage()
    )
