"""Builds parts of a run, and loads checkpoint weights."""

from __future__ import annotations

import os
import pickle
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from lightning.fabric.utilities.load import _METADATA_FILENAME
from torch import Tensor

from lightning_cgrpo.cli.messages import explain
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.datamodules.base import GroupDataModule, Split
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.policies.base_weights import same_base
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.run.checkpoints.damage import check_checkpoint
from lightning_cgrpo.run.checkpoints.files import CHECKPOINTS, best_of, newest
from lightning_cgrpo.run.checkpoints.replacement import remove_checkpoint
from lightning_cgrpo.run.checkpoints.resumable import check_parts, check_weights
from lightning_cgrpo.run.checkpoints.sharded import read_weights
from lightning_cgrpo.run.fingerprints import source_fingerprints
from lightning_cgrpo.run.manifest import Manifest, prompts_digest
from lightning_cgrpo.run.place import configuration_beside
from lightning_cgrpo.settings.configuration import Config, ConfigError

PREFIX = "policy."


def load(checkpoint: str | Path) -> RolloutModule:
    """The module of a run in eval mode on the CPU, from its ``config.yaml`` and a checkpoint's policy weights.

    ``config.yaml`` is code: it names classes, which are imported and called. Load only runs whose ``config.yaml`` you
    have read.

    Args:
        checkpoint: a checkpoint, or a run's folder: then the best checkpoint that validation ranked, else the newest.

    Example::

        module = lightning_cgrpo.load("runs/gsm8k/version_0")
        texts = module.policy.model.generate(...)
    """
    path = _choose_checkpoint(Path(checkpoint))
    check_checkpoint(str(path))
    config = configuration_beside(path)
    if config is None:
        raise UserError(
            f"Expected {path.parent.parent / 'config.yaml'}, from which to build the module, but there is none, try "
            "building the module as for training, and trainer.test(module, data, ckpt_path=...)."
        )
    import_names()
    module: RolloutModule = instantiate({"model": config["model"]}, model=RolloutModule)["model"]
    _, weights, base = read_checkpoint(path)
    put_weights(module.policy, weights, base, path)
    return module.eval()


def _choose_checkpoint(path: Path) -> Path:
    """The checkpoint, or a run's default checkpoint, which is printed."""
    if not path.exists():
        raise UserError(f"There is no checkpoint '{path}' (seen from {Path.cwd()}).")
    if not path.is_dir() or path.suffix == ".ckpt":
        return path
    last = newest([path / CHECKPOINTS, *path.glob(f"*/{CHECKPOINTS}")])
    if last is None:
        raise UserError(f"Expected a checkpoint, or the folder of a run, but '{path}' holds no checkpoint.")
    best = best_of(last)
    if best is None:
        print(f"Loading {last}, the newest.")
        return last
    checkpoint, ranked_by = best
    print(f"Loading {checkpoint}, the best by {ranked_by}.")
    return checkpoint


def instantiate(config: Config, **kinds: type) -> dict[str, Any]:
    """Make the objects of a configuration at the keys of `kinds`, their base classes; returns them by key."""
    with _parse_parts(config, kinds) as (parser, parsed):
        objects = parser.instantiate_classes(parsed)
    return {key: objects[key] for key in kinds}


def with_defaults(config: Config, **kinds: type) -> Config:
    """The parts of a configuration at the keys of `kinds`, with the defaults of their classes."""
    with _parse_parts(config, kinds) as (_, parsed):
        filled: Config = parsed.as_dict()
    return filled


@contextmanager
def _parse_parts(config: Config, kinds: Mapping[str, type]) -> Iterator[tuple[ArgumentParser, Namespace]]:
    """A parser of the classes that the configuration names at the keys of `kinds`, and the parts that it parsed.

    Raises:
        ConfigError: errors of the parser, and within the context.
    """
    parser = ArgumentParser(exit_on_error=False)
    for key, kind in kinds.items():
        parser.add_subclass_arguments(kind, key)
        if key not in config:
            raise ConfigError(f"Expected the configuration to have '{key}', but it has none.")
    try:
        with UserCode("the classes that the configuration names"):
            yield parser, parser.parse_object({key: config[key] for key in kinds})
    except (ArgumentError, ValueError, TypeError) as error:
        raise ConfigError(explain(error)) from error


def prompts_digest_of(data: GroupDataModule, split: Split) -> str | None:
    """The digest of a split's prompts as they are now; None if nothing is known of them without making them."""
    data.prepare_data()
    fingerprints = source_fingerprints(data.source(split))
    return None if fingerprints is None else prompts_digest(fingerprints)


def read_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], str | None]:
    """The number of updates done, the policy's weights by name, and the fingerprint of base weights that it lacks."""
    sharded = path.is_dir()
    try:
        # Mapped, because most of the file is the optimizer's state, which is never read.
        file = path / _METADATA_FILENAME if sharded else path
        saved = check_parts(torch.load(file, map_location="cpu", weights_only=True, mmap=True), str(path))
        state = read_weights(path, "state_dict.") if sharded else saved["state_dict"]
        update = int(saved["global_step"])
        base = saved.get("base_weights", {}).get("policy")
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise UserError(
            f"Expected '{path}' to be a checkpoint of a run, but got {type(error).__name__}: {first_line(error)}."
        ) from None
    weights = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    return update, weights, base


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in a checkpoint, if it has one."""
    file = path / _METADATA_FILENAME if path.is_dir() else path
    content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return Manifest.of(content) if isinstance(content, Mapping) else None


@contextmanager
def hold_checkpoint(checkpoint: Path) -> Iterator[Path]:
    """A second name for a checkpoint's files as they are now, removed afterwards: a running `fit` may replace them.

    Names that killed commands of this machine left behind are removed first.

    Raises:
        UserError: an error within, under the checkpoint's own name.
    """
    machine = _machine_name()
    for leftover in checkpoint.parent.glob(f".*.{machine}.*-*{checkpoint.suffix}"):
        process = leftover.stem.rpartition(".")[2].partition("-")[0]
        if process.isdigit() and not _is_running(int(process)):
            remove_checkpoint(leftover)
    unique = f"{machine}.{os.getpid()}-{uuid4().hex[:8]}"
    name = checkpoint.with_name(f".{checkpoint.stem}.{unique}{checkpoint.suffix}")
    try:
        _link_or_copy(checkpoint, name)
        yield name
    except UserError as error:
        # The user knows the file by its own name.
        raise type(error)(str(error).replace(str(name), str(checkpoint))) from error
    finally:
        remove_checkpoint(name)


def _link_or_copy(checkpoint: Path, name: Path) -> None:
    """Give a checkpoint's files a second name; on a file system without links, copy them."""
    try:
        if checkpoint.is_dir():
            shutil.copytree(checkpoint, name, copy_function=os.link)
        else:
            os.link(checkpoint, name)
    except OSError:
        if checkpoint.is_dir():
            shutil.copytree(checkpoint, name)
        else:
            shutil.copy2(checkpoint, name)


def file_stamps(path: Path) -> list[tuple[str, int, int]]:
    """Sizes and times of a checkpoint's files, which change if a program writes into them."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _machine_name() -> str:
    return re.sub(r"\W", "_", platform.node())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process, which runs
    return True


def put_weights(policy: Policy, weights: dict[str, Tensor], base: str | None, checkpoint: Path) -> None:
    """Load a policy with a checkpoint's weights, in the checkpoint's dtypes.

    Args:
        base: fingerprint of the base weights that the checkpoint lacks.
    """
    with UserCode(f"{type(policy).__name__}.load"):
        policy.load()
    if base is not None:
        # The base weights come from the model's files, and get the precision of the checkpoint's weights.
        if any(weight.dtype == torch.float64 for weight in weights.values()):
            policy.double()
        weights = same_base(policy, base, str(checkpoint)) | weights
    check_weights(policy.state_dict(), weights, str(checkpoint))
    for name, parameter in policy.named_parameters():
        parameter.data = parameter.data.to(weights[name].dtype)
    policy.load_state_dict(weights)
