"""Where runs lie: their folders, their checkpoints, and what an evaluation writes beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_cgrpo.checkpoints.files import best_of, put_back
from lightning_cgrpo.checkpoints.names import is_remote
from lightning_cgrpo.cli.configuration import Config, ConfigError, read
from lightning_cgrpo.cli.method import get
from lightning_cgrpo.cli.run_name import VERSIONED, logger_class

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within the folder of a run."""
START = "start"
"""The version of an evaluation of starting weights."""
NEAREST = 2
"""Checkpoints of other runs that an error names."""


def last_checkpoint(config: Config) -> Path:
    """The newest `last.ckpt` of the runs with this configuration's logger, folder and name.

    Raises:
        ConfigError: if there is none; names those of other runs in the same folder.
    """
    places = list(_places(config))
    for place in places:
        put_back(place)
    candidates = [place / "last.ckpt" for place in places if (place / "last.ckpt").exists()]
    if candidates:
        return max(candidates, key=_age)
    folder = _folder(config)
    others = sorted(folder.parent.glob(f"*/*/{CHECKPOINTS}/last.ckpt"), key=_age, reverse=True)[:NEAREST]
    hint = f", try --ckpt_path={' or '.join(map(str, others))}" if others else ""
    raise ConfigError(f"Expected a checkpoint {folder}/*/{CHECKPOINTS}/last.ckpt, but found none{hint}.")


def best_checkpoint(config: Config) -> Path:
    """The best checkpoint of the newest run, by the `monitor` of the run's checkpoint callback.

    Raises:
        UserError: if there is no run, or the run monitors nothing.
    """
    return best_of(last_checkpoint(config))


def existing(checkpoint: str) -> bool:
    """Whether there is such a checkpoint; assumed of a remote one."""
    if is_remote(checkpoint):
        return True
    put_back(Path(checkpoint).parent)
    return Path(checkpoint).exists()


def checkpoints_below(folder: str) -> list[Path]:
    """The last checkpoints of the runs in a folder, the newest at the end; none if it is a checkpoint itself."""
    path = Path(folder)
    if is_remote(folder) or not path.is_dir() or path.suffix == ".ckpt":
        return []
    found = {
        file for level in ("", "*/", f"{CHECKPOINTS}/", f"*/{CHECKPOINTS}/") for file in path.glob(f"{level}last.ckpt")
    }
    return sorted(found, key=_age)


def configuration_beside(checkpoint: str | Path) -> Config | None:
    """The configuration of the run that wrote a checkpoint, if the run has kept one."""
    path = Path(checkpoint).parent.parent / "config.yaml"
    try:
        return read(path) if not is_remote(checkpoint) and path.is_file() else None
    except ConfigError:
        return None


def log_beside(config: Config, command: str) -> None:
    """Have an evaluation log into the folder of the run whose checkpoint is evaluated, rather than a new version.

    The evaluation of starting weights logs into the version ``start``.
    """
    checkpoint = config.get("ckpt_path")
    run = Path(checkpoint).parent.parent if checkpoint and Path(checkpoint).parent.name == CHECKPOINTS else None
    logger = get(config, "trainer.logger")
    for one in logger if isinstance(logger, list) else [logger]:
        if not isinstance(one, dict) or logger_class(one) not in VERSIONED:
            continue
        arguments = one.setdefault("init_args", {})
        if arguments.get("version") is not None:
            continue
        if run is not None:
            arguments |= {"save_dir": str(run.parent.parent), "name": run.parent.name, "version": run.name}
        else:
            arguments["version"] = START if checkpoint is None else Path(checkpoint).stem
        if logger_class(one) == "CSVLogger":
            # A CSVLogger removes the metrics that it finds in its folder.
            arguments["version"] += f"/{command}"


def _folder(config: Config) -> Path:
    """The folder with the versions of a run: the logger's `save_dir` and `name` (W&B's `project`)."""
    logger = get(config, "trainer.logger")
    # Lightning keeps checkpoints with the first of several loggers.
    first = logger[0] if isinstance(logger, list) and logger else logger
    arguments: dict[str, Any] = (first.get("init_args") or {}) if isinstance(first, dict) else {}
    root = arguments.get("save_dir") or get(config, "trainer.default_root_dir") or "."
    key = "project" if isinstance(first, dict) and logger_class(first) == "WandbLogger" else "name"
    return Path(root) / str(arguments.get(key) or "lightning_logs")


def _places(config: Config) -> Iterator[Path]:
    """Folders with checkpoints of runs with the same name."""
    given = get(config, "callbacks.checkpoints.init_args.dirpath")
    if given:
        yield Path(given)
        return
    if get(config, "trainer.logger") is False:
        yield Path(get(config, "trainer.default_root_dir") or ".") / CHECKPOINTS
        return
    for place in _folder(config).glob(f"*/{CHECKPOINTS}"):
        kept = configuration_beside(place / "last.ckpt")
        # Runs of a W&B project share its folder, whatever their names.
        if kept is None or _name(kept) == _name(config):
            yield place


def _name(config: Config) -> Any:
    logger = get(config, "trainer.logger")
    first = logger[0] if isinstance(logger, list) and logger else logger
    return get(first, "init_args.name")


def _age(path: Path) -> float:
    return os.stat(path).st_mtime
