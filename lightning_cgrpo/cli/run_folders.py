"""A run's folder: its name, its checkpoint, and where evaluations log. Imports no torch, so errors come quickly."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning_cgrpo.checkpoints.files import CHECKPOINTS, LAST, best_of, is_remote, newest, put_back
from lightning_cgrpo.cli.configuration import (
    Config,
    ConfigError,
    Layer,
    Resolved,
    get,
    read,
    short_class,
    stacked,
)
from lightning_cgrpo.cli.method import Method, method_of, seed_of

VERSIONED = ("TensorBoardLogger", "CSVLogger")
"""Loggers that write to ``SAVE_DIR/NAME/VERSION``."""
NAMED = (*VERSIONED, "WandbLogger")
LONGEST = 100
"""Characters of a name; a longer name is cut and ends with a fingerprint."""
START = "start"
"""The version under which the evaluation of starting weights logs."""
NEAREST = 2
"""Checkpoints of other runs that an error names."""
AUTO = "auto"
EVALUATIONS = {"validate": "Validating", "test": "Testing", "predict": "Predicting with"}
BEGINNINGS = {"fit": "Resuming from", "certify": "Certifying", "export": "Exporting", **EVALUATIONS}


# ---------------------------------------------------------------------- the name


def run_name(layers: Sequence[Layer]) -> Layer:
    """The layer that gives loggers the name of the run.

    The name begins with the first file's, or with the logger's own name in a file. Labels of further layers that change
    learning follow: ``gridworld,scalarized_rewards,seed=1``. A logger's name on the command line stays as given.

    Args:
        layers: defaults, files, overrides.
    """
    labels: list[str] = []
    before = ""
    for number in range(1, len(layers)):
        layer = layers[number]
        config = stacked(layers[: number + 1])
        after = json.dumps([_learning(config), seed_of(config)], sort_keys=True, default=str)
        if _names_a_logger(layer.config):
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    first = layers[1].label if len(layers) > 1 else "run"
    logger = get(stacked(layers), "trainer.logger")
    named: Any
    if isinstance(logger, list):
        named = [_with_name(one, first, labels) for one in logger]
    else:
        named = _with_name(logger, first, labels)
    return Layer({"trainer": {"logger": named}}, "")


def _loggers(config: Config) -> list[Config]:
    """The configured loggers; {} stands for any other value, such as False."""
    loggers = get(config, "trainer.logger")
    if not isinstance(loggers, list):
        loggers = [loggers]
    return [logger if isinstance(logger, dict) else {} for logger in loggers]


def _names_a_logger(config: Config) -> bool:
    for logger in _loggers(config):
        arguments = logger.get("init_args") or logger
        if arguments.get("name") is not None:
            return True
    return False


def _learning(config: Config) -> Method:
    """The method without the file of test prompts, so that a run is found again to answer other prompts."""
    method = method_of(config)
    data = method.get("data")
    if isinstance(data, dict):
        for part in (data, data.get("init_args")):
            if isinstance(part, dict):
                part.pop("test_path", None)
    return method


def _with_name(logger: Any, first: str, labels: Sequence[str]) -> Any:
    settings = {"class_path": logger} if isinstance(logger, str) else logger
    if not isinstance(settings, dict) or short_class(settings) not in NAMED:
        return logger
    arguments = {"save_dir": "runs", "name": first, **(settings.get("init_args") or {})}
    arguments["save_dir"] = os.path.expanduser(arguments["save_dir"])
    return {**settings, "init_args": {**arguments, "name": _joined([str(arguments["name"]), *labels])}}


def _joined(parts: Sequence[str]) -> str:
    """A folder's name of at most `LONGEST` characters."""
    cleaned = []
    for number, part in enumerate(parts):
        # The first part may be a name that a user gives, with commas.
        unsuited = r"[^\w.,=+-]+" if number == 0 else r"[^\w.=+-]+"
        cleaned.append(re.sub(unsuited, "-", part).strip("-"))
    name = ",".join(cleaned)
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# ---------------------------------------------------------------------- the checkpoint


def find_checkpoint(command: str, config: Config) -> str | None:
    """Replace ``last``, ``best`` and ``auto`` in ``ckpt_path`` by a path or None; the line that says what was taken.

    ``auto`` is the newest checkpoint for ``fit``, or a new run. For other commands, ``auto`` is the best checkpoint if
    validation ranked any, else the newest; without a run, evaluations take the starting weights.

    Raises:
        UserError: no such checkpoint, or several that could be meant.
    """
    asked = config.get("ckpt_path")
    if asked not in ("last", "best", AUTO):
        if asked not in (None, "hpc", "registry"):
            _check_exists(str(asked))
        return _beginning(command, config, asked, "")

    # Training and evaluations can begin without a checkpoint.
    optional = asked == AUTO and command in ("fit", *EVALUATIONS)
    last = newest(_places(config)) if optional else last_checkpoint(config)
    # Training goes on from its end, other commands take the best policy.
    wants_best = asked == "best" or (asked == AUTO and command != "fit")
    best = best_of(last) if wants_best and last is not None else None

    chosen = last
    reason = ""
    if best is not None:
        chosen, metric = best
        reason = f", the best by {metric}"
    elif asked == "best":
        raise ConfigError(
            f"Expected a run that monitors a metric for --ckpt_path=best, but '{last}' ranks no checkpoints, try "
            "--ckpt_path=last, or a run with validation and --callbacks.checkpoints.monitor=val/merit, mode=max."
        )
    elif asked == AUTO and last is not None:
        reason = ", the newest"
        if command != "fit":
            reason += ", because no validation ranked the policies"
    config["ckpt_path"] = None if chosen is None else str(chosen)
    return _beginning(command, config, asked, reason)


def _check_exists(checkpoint: str) -> None:
    if is_remote(checkpoint):
        return
    path = Path(checkpoint)
    put_back(path.parent)
    if not path.exists():
        raise ConfigError(f"There is no checkpoint '{checkpoint}', try --ckpt_path=last.")
    if path.is_dir() and path.suffix != ".ckpt":
        # The folder may be of checkpoints, of a run, or of runs.
        folders: set[Path] = set()
        for level in ("", "*/", f"{CHECKPOINTS}/", f"*/{CHECKPOINTS}/"):
            folders.update(file.parent for file in path.glob(f"{level}{LAST}"))
        inside = newest(folders)
        if inside is not None:
            raise ConfigError(
                f"Expected a checkpoint, but '{checkpoint}' is a folder of runs, try --ckpt_path={inside}."
            )


def last_checkpoint(config: Config) -> Path:
    """The newest checkpoint of the runs with this configuration's logger, folder and name; see `newest`."""
    last = newest(_places(config))
    if last is not None:
        return last
    folder = _folder(config)
    others = _nearest(folder)
    hint = "; `fit` without --ckpt_path starts a run"
    if others:
        hint = f", try --ckpt_path={' or '.join(map(str, others))}"
    raise ConfigError(f"Expected a checkpoint {folder}/*/{CHECKPOINTS}/{LAST}, but found none{hint}.")


def _nearest(folder: Path) -> list[Path]:
    """Each last checkpoint of the runs with the most similar names: a name lists files and overrides."""
    wanted = set(folder.name.split(","))
    runs = {file.parents[2] for file in folder.parent.glob(f"*/*/{CHECKPOINTS}/{LAST}")}
    similar = sorted(runs, key=lambda run: (len(wanted ^ set(run.name.split(","))), run.name))[:NEAREST]
    # version_10 is newer than version_9.
    return [max(run.glob(f"*/{CHECKPOINTS}/{LAST}"), key=lambda file: (len(str(file)), file)) for run in similar]


def _folder(config: Config) -> Path:
    first = _loggers(config)[0]
    arguments: dict[str, Any] = first.get("init_args") or {}
    root = arguments.get("save_dir") or get(config, "trainer.default_root_dir") or "."
    key = "project" if short_class(first) == "WandbLogger" else "name"
    return Path(root) / str(arguments.get(key) or "lightning_logs")


def _places(config: Config) -> Iterator[Path]:
    """Folders of checkpoints of all versions of the run."""
    if dirpath := get(config, "callbacks.checkpoints.init_args.dirpath"):
        yield Path(dirpath)
        return
    if get(config, "trainer.logger") is False:
        yield Path(get(config, "trainer.default_root_dir") or ".") / CHECKPOINTS
        return
    for place in _folder(config).glob(f"*/{CHECKPOINTS}"):
        kept = configuration_beside(place / LAST)
        # Runs of different names share the folder of a W&B project.
        if kept is None or _name(kept) == _name(config):
            yield place


def _name(config: Config) -> Any:
    return get(_loggers(config)[0], "init_args.name")


def configuration_beside(checkpoint: str | Path) -> Config | None:
    """The configuration of a checkpoint's run; None if missing or unreadable."""
    path = Path(checkpoint).parent.parent / "config.yaml"
    try:
        return Resolved(read(path)) if not is_remote(checkpoint) and path.is_file() else None
    except ConfigError:
        return None


# ---------------------------------------------------------------------- what is said, and where evaluations log


def _beginning(command: str, config: Config, asked: Any, reason: str) -> str | None:
    checkpoint = config.get("ckpt_path")
    if checkpoint is None:
        if command not in EVALUATIONS:
            return "No checkpoint of this run yet: a new run starts." if asked == AUTO else None
        weights = get(config, "model.init_args.policy.init_args.model") or "drawn from the seed"
        other = "no run of this configuration has a checkpoint" if asked == AUTO else "--ckpt_path=last takes the run's"
        return f"{EVALUATIONS[command]} the starting weights ({weights}); {other}."
    if command not in BEGINNINGS:
        return None
    anew = " (--ckpt_path=null starts anew)" if command == "fit" else ""
    return f"{BEGINNINGS[command]} {checkpoint}{reason}{anew}."


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
