"""Folders, checkpoints and logs of runs. Imports no torch, so that a missing checkpoint is told in half a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_cgrpo.checkpoints.names import is_remote
from lightning_cgrpo.checkpoints.replacing import put_back
from lightning_cgrpo.cli.configuration import Config, ConfigError, get, read, short_class
from lightning_cgrpo.cli.run_name import VERSIONED, loggers

CHECKPOINTS = "checkpoints"
START = "start"
"""The version under which the evaluation of starting weights logs."""
NEAREST = 2
"""Checkpoints of other runs that an error names."""


def find_checkpoint(config: Config) -> None:
    """Replace ``last`` in ``ckpt_path`` by a path.

    Raises:
        UserError: no such checkpoint.
    """
    checkpoint = config.get("ckpt_path")
    if checkpoint in ("last", "best"):
        last = last_checkpoint(config)
        if checkpoint == "last":
            config["ckpt_path"] = str(last)
    elif checkpoint is None or checkpoint in ("hpc", "registry"):
        return
    elif not _existing(checkpoint):
        raise ConfigError(f"There is no checkpoint '{checkpoint}', try --ckpt_path=last.")
    elif inside := _checkpoints_below(checkpoint):
        raise ConfigError(
            f"Expected a checkpoint, but '{checkpoint}' is a folder of runs, try --ckpt_path={inside[-1]}."
        )


def last_checkpoint(config: Config) -> Path:
    """The newest `last.ckpt` of the runs with this configuration's logger, folder and name."""
    places = list(_places(config))
    for place in places:
        put_back(place)
    candidates = [place / "last.ckpt" for place in places if (place / "last.ckpt").exists()]
    if candidates:
        return max(candidates, key=_age)
    folder = _folder(config)
    others = _nearest(folder)
    hint = (
        f", try --ckpt_path={' or '.join(map(str, others))}" if others else "; `fit` without --ckpt_path starts a run"
    )
    raise ConfigError(f"Expected a checkpoint {folder}/*/{CHECKPOINTS}/last.ckpt, but found none{hint}.")


def _nearest(folder: Path) -> list[Path]:
    """The newest ``last.ckpt`` of other runs, of the most similar names first: a name lists files and overrides."""
    newest: dict[str, Path] = {}
    for file in sorted(folder.parent.glob(f"*/*/{CHECKPOINTS}/last.ckpt"), key=_age, reverse=True):
        newest.setdefault(file.parents[2].name, file)
    wanted = set(folder.name.split(","))
    # Sorting keeps the newer of equally similar runs first.
    return sorted(newest.values(), key=lambda file: len(wanted ^ set(file.parents[2].name.split(","))))[:NEAREST]


def _existing(checkpoint: str) -> bool:
    """True if a checkpoint exists; always true for URLs."""
    if is_remote(checkpoint):
        return True
    put_back(Path(checkpoint).parent)
    return Path(checkpoint).exists()


def _checkpoints_below(folder: str) -> list[Path]:
    """Each ``last.ckpt`` in a folder of runs, the newest at the end; [] for a checkpoint."""
    path = Path(folder)
    if is_remote(folder) or not path.is_dir() or path.suffix == ".ckpt":
        return []
    levels = ("", "*/", f"{CHECKPOINTS}/", f"*/{CHECKPOINTS}/")
    return sorted({file for level in levels for file in path.glob(f"{level}last.ckpt")}, key=_age)


def configuration_beside(checkpoint: str | Path) -> Config | None:
    """The configuration of a checkpoint's run; None if missing or unreadable."""
    path = Path(checkpoint).parent.parent / "config.yaml"
    try:
        return read(path) if not is_remote(checkpoint) and path.is_file() else None
    except ConfigError:
        return None


def log_beside(config: Config, command: str) -> None:
    """Make an evaluation log into its checkpoint's run instead of a new version.

    Evaluations of starting weights log into the version ``start``.
    """
    checkpoint = config.get("ckpt_path")
    run = Path(checkpoint).parent.parent if checkpoint and Path(checkpoint).parent.name == CHECKPOINTS else None
    for logger in _loggers(config):
        if short_class(logger) not in VERSIONED:
            continue
        arguments = logger.setdefault("init_args", {})
        if arguments.get("version") is not None:
            continue
        if run is not None:
            arguments |= {"save_dir": str(run.parent.parent), "name": run.parent.name, "version": run.name}
        else:
            arguments["version"] = START if checkpoint is None else Path(checkpoint).stem
        if short_class(logger) == "CSVLogger":
            # A CSVLogger removes the metrics that it finds in its folder.
            arguments["version"] += f"/{command}"


def _loggers(config: Config) -> list[Config]:
    """The configured loggers; {} stands for any other value, such as False."""
    return [one if isinstance(one, dict) else {} for one in loggers(config)] or [{}]


def _folder(config: Config) -> Path:
    first = _loggers(config)[0]
    arguments: dict[str, Any] = first.get("init_args") or {}
    root = arguments.get("save_dir") or get(config, "trainer.default_root_dir") or "."
    key = "project" if short_class(first) == "WandbLogger" else "name"
    return Path(root) / str(arguments.get(key) or "lightning_logs")


def _places(config: Config) -> Iterator[Path]:
    given = get(config, "callbacks.checkpoints.init_args.dirpath")
    if given:
        yield Path(given)
        return
    if get(config, "trainer.logger") is False:
        yield Path(get(config, "trainer.default_root_dir") or ".") / CHECKPOINTS
        return
    for place in _folder(config).glob(f"*/{CHECKPOINTS}"):
        kept = configuration_beside(place / "last.ckpt")
        # Runs of different names share the folder of a W&B project.
        if kept is None or _name(kept) == _name(config):
            yield place


def _name(config: Config) -> Any:
    return get(_loggers(config)[0], "init_args.name")


def _age(path: Path) -> float:
    return os.stat(path).st_mtime
