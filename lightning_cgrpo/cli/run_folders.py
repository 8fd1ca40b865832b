"""A run's folder: its name, its checkpoint, and where evaluations log. Imports no torch, so errors come quickly."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_cgrpo.checkpoints.files import LAST, best_of, is_remote, newest, put_back
from lightning_cgrpo.cli.configuration import (
    Config,
    ConfigError,
    Layer,
    Resolved,
    get,
    is_class,
    read,
    short_class,
    stacked,
)
from lightning_cgrpo.cli.method import Method, method_of, seed_of

CHECKPOINTS = "checkpoints"
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
        layer, config = layers[number], stacked(layers[: number + 1])
        after = json.dumps([_learning(config), seed_of(config)], sort_keys=True, default=str)
        if any((logger.get("init_args") or logger).get("name") is not None for logger in _loggers(layer.config)):
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    first = layers[1].label if len(layers) > 1 else "run"
    logger = get(stacked(layers), "trainer.logger")
    named = [_with_name(one, first, labels) for one in (logger if isinstance(logger, list) else [logger])]
    return Layer({"trainer": {"logger": named if isinstance(logger, list) else named[0]}}, "")


def _loggers(config: Config) -> list[Config]:
    """The configured loggers; {} stands for any other value, such as False."""
    loggers = get(config, "trainer.logger")
    return [one if isinstance(one, dict) else {} for one in (loggers if isinstance(loggers, list) else [loggers])]


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
    # The first part may be a name that a user gives, with commas.
    kept = [r"[^\w.,=+-]+", *[r"[^\w.=+-]+"] * (len(parts) - 1)]
    name = ",".join(re.sub(others, "-", part).strip("-") for others, part in zip(kept, parts, strict=True))
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
    reason = ""
    if asked in ("last", "best", AUTO):
        starts = asked == AUTO and command in ("fit", *EVALUATIONS)
        last = newest(_places(config)) if starts else last_checkpoint(config)
        best = best_of(last) if last is not None and asked != "last" and (asked, command) != (AUTO, "fit") else None
        if asked == "best" and best is None:
            raise ConfigError(
                f"Expected a run that monitors a metric for --ckpt_path=best, but '{last}' ranks no checkpoints, try "
                "--ckpt_path=last, or a run with validation and --callbacks.checkpoints.monitor=val/merit, mode=max."
            )
        if best is not None:
            reason = f", the best by {best[1]}"
        elif last is not None and asked == AUTO:
            reason = ", the newest" if command == "fit" else ", the newest, because no validation ranked the policies"
        path = last if best is None else best[0]
        config["ckpt_path"] = None if path is None else str(path)
    elif asked is not None and asked not in ("hpc", "registry"):
        _check_exists(str(asked))
    return _beginning(command, config, asked, reason)


def _check_exists(checkpoint: str) -> None:
    if is_remote(checkpoint):
        return
    path = Path(checkpoint)
    put_back(path.parent)
    if not path.exists():
        raise ConfigError(f"There is no checkpoint '{checkpoint}', try --ckpt_path=last.")
    if path.is_dir() and path.suffix != ".ckpt":
        levels = ("", "*/", f"{CHECKPOINTS}/", f"*/{CHECKPOINTS}/")
        if (inside := newest({file.parent for level in levels for file in path.glob(f"{level}{LAST}")})) is not None:
            raise ConfigError(
                f"Expected a checkpoint, but '{checkpoint}' is a folder of runs, try --ckpt_path={inside}."
            )


def last_checkpoint(config: Config) -> Path:
    """The newest checkpoint of the runs with this configuration's logger, folder and name; see `newest`."""
    if (last := newest(_places(config))) is not None:
        return last
    folder = _folder(config)
    others = _nearest(folder)
    hint = (
        f", try --ckpt_path={' or '.join(map(str, others))}" if others else "; `fit` without --ckpt_path starts a run"
    )
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
