"""The name of a run's folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.cli.configuration import Config, Layer, get, short_class, stacked
from lightning_cgrpo.cli.method import Method, method_of, seed_of

VERSIONED = ("TensorBoardLogger", "CSVLogger")
"""Loggers that write to ``SAVE_DIR/NAME/VERSION``."""
NAMED = (*VERSIONED, "WandbLogger")
LONGEST = 100
"""Characters of a name; a longer name is cut and ends with a fingerprint."""


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
        if _gives_name(layer.config):
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    first = layers[1].label if len(layers) > 1 else "run"
    config = stacked(layers)
    named = [_with_name(logger, first, labels) for logger in loggers(config)]
    several = isinstance(get(config, "trainer.logger"), list)
    return Layer({"trainer": {"logger": named if several else named[0]}}, "")


def loggers(config: Config) -> list[Any]:
    """The values of `trainer.logger` as a list, also if single."""
    logger = get(config, "trainer.logger")
    return logger if isinstance(logger, list) else [logger]


def _learning(config: Config) -> Method:
    """The method without the file of test prompts, so that a run is found again to answer other prompts."""
    method = method_of(config)
    data = method.get("data")
    if isinstance(data, dict):
        for part in (data, data.get("init_args")):
            if isinstance(part, dict):
                part.pop("test_path", None)
    return method


def _gives_name(layer: Config) -> bool:
    given = [logger for logger in loggers(layer) if isinstance(logger, dict)]
    return any((logger.get("init_args") or logger).get("name") is not None for logger in given)


def _with_name(logger: Any, first: str, labels: Sequence[str]) -> Any:
    given = {"class_path": logger} if isinstance(logger, str) else logger
    if not isinstance(given, dict) or short_class(given) not in NAMED:
        return logger
    arguments = {"save_dir": "runs", "name": first, **(given.get("init_args") or {})}
    arguments["save_dir"] = os.path.expanduser(arguments["save_dir"])
    return {**given, "init_args": {**arguments, "name": _joined([str(arguments["name"]), *labels])}}


def _joined(parts: Sequence[str]) -> str:
    # The first part may be a name that a user gives, with commas.
    kept = [r"[^\w.,=+-]+", *[r"[^\w.=+-]+"] * (len(parts) - 1)]
    name = ",".join(re.sub(others, "-", part).strip("-") for others, part in zip(kept, parts, strict=True))
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"
