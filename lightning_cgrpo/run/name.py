"""A run's name: its file, and the settings that change learning."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.run.identity import method_of, seed_of
from lightning_cgrpo.settings.configuration import Config, Layer, get, short_class, stacked

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
        layer = layers[number]
        config = stacked(layers[: number + 1])
        after = json.dumps([method_of(config), seed_of(config)], sort_keys=True, default=str)
        if _names_a_logger(layer.config):
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    if not any(layer.is_override and _names_a_logger(layer.config) for layer in layers):
        labels = _with_seed(labels, stacked(layers))
    first = layers[1].label if len(layers) > 1 else "run"
    logger = get(stacked(layers), "trainer.logger")
    named: Any
    if isinstance(logger, list):
        named = [_with_name(one, first, labels) for one in logger]
    else:
        named = _with_name(logger, first, labels)
    return Layer({"trainer": {"logger": named}}, "")


def _with_seed(labels: list[str], config: Config) -> list[str]:
    """The labels, with the number of a seed that is read elsewhere, as by ``${oc.env:SEED}``."""
    seed = config.get("seed_everything")
    if not isinstance(seed, str) or "${" not in seed:
        return labels
    from omegaconf import OmegaConf

    read = OmegaConf.select(OmegaConf.create(config), "seed_everything")
    return [*(label for label in labels if not label.startswith("seed=${")), f"seed={read}"]


def loggers(config: Config) -> list[Config]:
    """The configured loggers; {} stands for any other value, such as False."""
    configured = get(config, "trainer.logger")
    if not isinstance(configured, list):
        configured = [configured]
    return [logger if isinstance(logger, dict) else {} for logger in configured]


def _names_a_logger(config: Config) -> bool:
    for logger in loggers(config):
        arguments = logger.get("init_args") or logger
        if arguments.get("name") is not None:
            return True
    return False


def _with_name(logger: Any, first: str, labels: Sequence[str]) -> Any:
    settings = {"class_path": logger} if isinstance(logger, str) else logger
    if not isinstance(settings, dict) or short_class(settings) not in NAMED:
        return logger
    arguments = {"save_dir": "runs", "name": first, **(settings.get("init_args") or {})}
    arguments["save_dir"] = os.path.expanduser(os.path.expandvars(arguments["save_dir"]))
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
