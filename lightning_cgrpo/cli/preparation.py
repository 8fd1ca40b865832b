"""Before a run: check its processes and checkpoint, and set up the process."""

from __future__ import annotations

import ctypes
import importlib
import os
from contextlib import suppress

from lightning.pytorch.utilities import rank_zero_only

from lightning_cgrpo.core.errors import MissingExtraError
from lightning_cgrpo.core.output import quiet_lightning
from lightning_cgrpo.run.checkpoints.damage import check_checkpoint
from lightning_cgrpo.run.place import EVALUATIONS, log_beside
from lightning_cgrpo.settings.configuration import Config, ConfigError, get
from lightning_cgrpo.settings.signatures import NAMESPACES

# glibc's numbers of the options of mallopt.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def prepare(command: str, config: Config, beginning: str | None = None) -> None:
    """Check the checkpoint before a model is loaded, print the `beginning` of `find_checkpoint`, set up the process.

    Raises:
        UserError: a damaged checkpoint, or a wrong number of processes.
    """
    config.setdefault("weights_only", True)
    if command != "data":
        _check_processes(config)
    if config.get("ckpt_path") not in (None, "hpc", "registry"):
        check_checkpoint(str(config["ckpt_path"]))
    if beginning is not None and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
        print(beginning, flush=True)
    if command in EVALUATIONS:
        log_beside(config, command)
    quiet_lightning()
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


def _check_processes(config: Config) -> None:
    """Refuse a number of processes, from torchrun or SLURM, other than the configured number."""
    devices = get(config, "trainer.devices")
    nodes = get(config, "trainer.num_nodes") or 1
    counts = {"torchrun": os.environ.get("WORLD_SIZE"), "SLURM": os.environ.get("SLURM_NTASKS")}
    for launcher, count in counts.items():
        # In an interactive job of SLURM, Lightning launches the processes itself.
        interactive = launcher == "SLURM" and os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
        if count is not None and not interactive and isinstance(devices, int) and devices * nodes != int(count):
            raise ConfigError(
                f"Expected trainer.devices x trainer.num_nodes to be the {count} processes of {launcher}, but got "
                f"{devices} x {nodes}, try --trainer.devices={int(count) // nodes}."
            )
    launched = any(count is not None for count in counts.values())
    if nodes > 1 and not launched and "MASTER_ADDR" not in os.environ:
        raise ConfigError(
            f"Expected MASTER_ADDR and NODE_RANK in the environment for trainer.num_nodes={nodes}, but got none, try "
            "torchrun or SLURM on every node (docs/multi_gpu.md)."
        )


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
