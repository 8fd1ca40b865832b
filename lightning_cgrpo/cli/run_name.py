"""The name of a run's folder: the first file, and everything laid on top of the first file that changes learning."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.cli.configuration import Config, Layer, stacked
from lightning_cgrpo.cli.method import get, method_of, seed_of

VERSIONED = ("TensorBoardLogger", "CSVLogger")
"""Loggers with the arguments `save_dir`, `name` and `version`, which write to ``SAVE_DIR/NAME/VERSION``."""
NAMED = (*VERSIONED, "WandbLogger")
"""Loggers with the arguments `save_dir` and `name`."""
LONGEST = 100
"""Characters of a name; a longer name ends with a fingerprint instead."""


def run_name(layers: Sequence[Layer]) -> Layer:
    """The layer that gives loggers the name of the run.

    The name is the first file's, or the name that a file gives to its logger, followed by the files and overrides that
    change learning: ``gridworld,scalarized_rewards,seed=1``. So runs of different configurations have different
    folders, and ``--ckpt_path=last`` finds the run of the same command. A logger's name on the command line is taken
    as given.

    Args:
        layers: the defaults, the files, the overrides.
    """
    labels: list[str] = []
    before = ""
    for number in range(1, len(layers)):
        layer, config = layers[number], stacked(layers[: number + 1])
        after = _learning(config)
        if _gives_name(layer.config):
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    first = layers[1].label if len(layers) > 1 else "run"
    logger = get(stacked(layers), "trainer.logger")
    several = isinstance(logger, list)
    loggers = [_with_name(one, first, labels) for one in (logger if several else [logger])]
    return Layer({"trainer": {"logger": loggers if several else loggers[0]}}, "")


def _learning(config: Config) -> str:
    """The same text for configurations that learn the same."""
    return json.dumps([method_of(config), seed_of(config)], sort_keys=True, default=str)


def _gives_name(layer: Config) -> bool:
    """Whether a layer gives a name to a logger."""
    logger = get(layer, "trainer.logger")
    given = [one for one in (logger if isinstance(logger, list) else [logger]) if isinstance(one, dict)]
    return any((one.get("init_args") or one).get("name") is not None for one in given)


def _with_name(logger: Any, first: str, labels: Sequence[str]) -> Any:
    """A logger with the arguments `save_dir` and `name`, if it is one that has these."""
    given = {"class_path": logger} if isinstance(logger, str) else logger
    if not isinstance(given, dict) or logger_class(given) not in NAMED:
        return logger
    arguments = {"save_dir": "runs", "name": first, **(given.get("init_args") or {})}
    arguments["save_dir"] = os.path.expanduser(arguments["save_dir"])
    return {**given, "init_args": {**arguments, "name": _joined([str(arguments["name"]), *labels])}}


def logger_class(logger: Config) -> str:
    """The name of a logger's class."""
    return str(logger.get("class_path")).rpartition(".")[2]


def _joined(parts: Sequence[str]) -> str:
    # The first part may be a name that a user gives, with commas.
    kept = [r"[^\w.,=+-]+", *[r"[^\w.=+-]+"] * (len(parts) - 1)]
    name = ",".join(re.sub(others, "-", part).strip("-") for others, part in zip(kept, parts, strict=True))
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
