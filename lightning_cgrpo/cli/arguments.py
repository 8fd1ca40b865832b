"""Command-line arguments become a checked configuration, before anything heavy is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import DEFAULTS, Config, ConfigError, build, file_layer, find, override
from lightning_cgrpo.cli.key_check import check_keys
from lightning_cgrpo.cli.run_name import run_name
from lightning_cgrpo.objective.objective import Objective

OPTIONS = {
    "fit": (),
    "validate": ("verbose",),
    "test": ("verbose",),
    "predict": ("return_predictions",),
    "export": (),
    "plan": (),
}
"""Settings at the top of a configuration that one command alone has."""


def read_arguments(command: str, arguments: list[str]) -> tuple[Config, list[str]]:
    """The configuration that defaults, files and overrides make, and flags for jsonargparse.

    Raises:
        ConfigError: for an argument, a file, a key or an interpolation that is wrong.
        ObjectiveError: for an objective that is wrong.
    """
    files, overrides, flags = _split(arguments)
    if not files and not flags:
        raise ConfigError("Expected a configuration, but got none, try -c configs/gridworld.yaml.")
    for name in files:
        _add_to_path(find(name).parent)
    layers = [file_layer(name) for name in (str(DEFAULTS), *files)]
    layers += [override(key, text) for key, text in overrides]
    config = build([*layers, run_name(layers)])
    if not flags and "model" not in config:
        raise ConfigError("Expected a configuration with a model, but got none, try -c configs/gridworld.yaml.")
    objective = _objective(config)
    if objective is not None:
        # A constraint is removed like a callback, by null.
        constraints = objective.get("constraints") or {}
        if isinstance(constraints, dict):
            objective["constraints"] = {name: c for name, c in constraints.items() if c is not None}
    check_keys(config, OPTIONS[command])
    if objective is not None:
        Objective.declared(objective)
    return config, flags


def _split(arguments: list[str]) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Files, overrides ``(key, text)``, and flags such as ``--help``."""
    files, overrides, flags = [], [], []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("-"):
            raise ConfigError(f"Expected --KEY=VALUE or -c FILE, but got '{argument}'.")
        key, equals, value = argument.lstrip("-").partition("=")
        followed = bool(queue) and not queue[0].startswith("-")
        if key in ("help", "h", "print_config"):
            flags.append(argument)
            continue
        if key.endswith(".help"):
            flags.append(f"{argument}={queue.pop(0)}" if followed and not equals else argument)
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ConfigError(f"Expected a value for {argument}, as in {argument}=VALUE, but got none.")
            value = queue.pop(0)
        if key in ("c", "config"):
            files.append(value)
        else:
            overrides.append((key, value))
    return files, overrides, flags


def _add_to_path(folder: Path) -> None:
    """Let a configuration name modules that lie beside it."""
    # At the end: a file there must not stand in for a library's module.
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)


def _objective(config: Config) -> Config | None:
    """The part of a configuration that declares the objective, if there is one."""
    part: Any = config
    for key in ("model", "init_args", "objective"):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) and "class_path" not in part else None
