"""A run's name: its file, and the settings that change learning."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.run.identity import method_of, seed_of
from lightning_cgrpo.settings.configuration import Config, Layer, get, merge_layers, short_class

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
    # The labels of the layers that change learning: method or seed differ once the layer is added.
    labels: list[str] = []
    before = ""
    for number in range(1, len(layers)):
        layer = layers[number]
        config = merge_layers(layers[: number + 1])
        after = json.dumps([method_of(config), seed_of(config)], sort_keys=True, default=str)
        if _names_a_logger(layer.config):  # The name begins anew with the logger's own.
            labels = []
            if layer.is_override:
                break
        elif number > 1 and after != before:
            labels.append(layer.label)
        before = after
    if not any(layer.is_override and _names_a_logger(layer.config) for layer in layers):
        labels = _with_seed(labels, merge_layers(layers))

    first = layers[1].label if len(layers) > 1 else "run"
    configured: Any = get(merge_layers(layers), "trainer.logger")
    if isinstance(configured, list):
        named: Any = [_name_logger(logger, first, labels) for logger in configured]
    else:
        named = _name_logger(configured, first, labels)
    return Layer({"trainer": {"logger": named}}, "")


def _with_seed(labels: list[str], config: Config) -> list[str]:
    """The labels, with the number of a seed that is read elsewhere, as by ``${oc.env:SEED}``."""
    seed = config.get("seed_everything")
    if not isinstance(seed, str) or "${" not in seed:
        return labels
    from omegaconf import OmegaConf

    number = OmegaConf.select(OmegaConf.create(config), "seed_everything")
    others = [label for label in labels if not label.startswith("seed=${")]
    return [*others, f"seed={number}"]


def configured_loggers(config: Config) -> list[Config]:
    """The configured loggers; {} stands for any other value, such as False."""
    configured = get(config, "trainer.logger")
    if not isinstance(configured, list):
        configured = [configured]
    loggers: list[Config] = []
    for logger in configured:
        loggers.append(logger if isinstance(logger, dict) else {})
    return loggers


def _names_a_logger(config: Config) -> bool:
    for logger in configured_loggers(config):
        arguments = logger.get("init_args") or logger
        if arguments.get("name") is not None:
            return True
    return False


def _name_logger(logger: Any, first: str, labels: Sequence[str]) -> Any:
    """The configuration of a logger, with the run's name and folder; loggers without names stay as they are."""
    settings = {"class_path": logger} if isinstance(logger, str) else logger
    if not isinstance(settings, dict) or short_class(settings) not in NAMED:
        return logger
    arguments = {"save_dir": "runs", "name": first, **(settings.get("init_args") or {})}
    arguments["save_dir"] = os.path.expanduser(os.path.expandvars(arguments["save_dir"]))
    arguments["name"] = _join_labels([str(arguments["name"]), *labels])
    return {**settings, "init_args": arguments}


def _join_labels(parts: Sequence[str]) -> str:
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
