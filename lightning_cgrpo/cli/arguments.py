"""Command-line arguments, checked without importing torch or Lightning."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lightning_cgrpo.core.errors import did_you_mean
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.name import run_name
from lightning_cgrpo.run.place import AUTO, run_of
from lightning_cgrpo.settings.configuration import (
    DEFAULTS,
    PACKAGED,
    Config,
    ConfigError,
    Layer,
    Resolved,
    build,
    file_layer,
    find_file,
    get,
    override_layer,
)
from lightning_cgrpo.settings.key_check import check_keys

EXAMPLES = PACKAGED.parent / "importable"
"""The folder from which ``examples.controllers``, ``.callbacks`` and ``.scene_sources`` can be imported anywhere."""

YAML = ".yaml", ".yml"
OPTIONS = {"validate": ("verbose",), "test": ("verbose",), "predict": ("return_predictions",)}

NAMED = ("model.init_args.objective.constraints", "model.init_args.task.init_args.signals")
"""Parts by name, which null removes, as it removes a callback."""


def read_arguments(command: str, arguments: list[str]) -> tuple[Resolved, list[str]]:
    """The checked configuration, and the flags for jsonargparse (``--help``, ``--print_config``)."""
    files, overrides, flags = _split_arguments(arguments)
    if flags and command in ("certify", "data", "export"):
        raise ConfigError(f"Expected no {flags[0]} for {command}, try it with fit.")
    if not files and not flags:
        raise ConfigError("Expected a configuration, but got none, try -c configs/gridworld.yaml.")
    _extend_import_path(files)

    # Later layers change single values of earlier layers: the defaults, the files, then the command line.
    layers = [file_layer(name) for name in (str(DEFAULTS), *files)]
    layers += [override_layer(key, text) for key, text in overrides]
    config = build([*layers, run_name(layers)])
    config.run = run_of(find_file(files[0])) if files else None

    if command != "fit":
        # The config.yaml of a resumed run names the checkpoint from which the run resumed.
        checkpoint = dict(overrides).get("ckpt_path", AUTO)
        config["ckpt_path"] = None if checkpoint in ("null", "None") else checkpoint
    if not flags and "model" not in config:
        raise ConfigError("Expected a configuration with a model, but got none, try -c configs/gridworld.yaml.")
    objective = get(config, "model.init_args.objective")
    is_declared = isinstance(objective, dict) and "class_path" not in objective
    for path in NAMED:
        _remove_nulls(config, path, layers)
    check_keys(config, OPTIONS.get(command, ()))
    if is_declared:
        Objective.declared(objective)  # wrong constraints are reported before torch is imported
    return config, flags


def _extend_import_path(files: Sequence[str]) -> None:
    """Make modules importable that lie beside a configuration, and the packaged examples.

    Their folders come at the end of the path, because libraries' modules come first.
    """
    folders = [find_file(name).parent.resolve() for name in files]
    for folder in (*folders, EXAMPLES):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _remove_nulls(config: Config, path: str, layers: Sequence[Layer]) -> None:
    """Take the named parts at a path that are null out of the configuration.

    Raises:
        ConfigError: no file has a part of this name.
    """
    named = get(config, path)
    if not isinstance(named, dict):
        return
    known: dict[str, None] = {}  # in the files' order, also of parts that a file removes
    for layer in layers:
        if not layer.is_override:
            known |= dict.fromkeys(get(layer.config, path) or ())
    for name, value in list(named.items()):
        if value is not None:
            continue
        del named[name]
        if name not in known:
            place = path.replace(".init_args", "")  # as on the command line
            raise ConfigError(
                f"Expected null to remove one of {', '.join(known) or 'no names'} from {place}, but got '{name}'."
                f"{did_you_mean(name, known)}"
            )


def _split_arguments(arguments: list[str]) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """The files after ``-c``, the overrides ``--KEY=VALUE`` as pairs, and the flags of jsonargparse."""
    files: list[str] = []
    overrides: list[tuple[str, str]] = []
    flags: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("-"):
            hint = f" Did you mean '-c {argument}'?" if argument.endswith(YAML) else ""
            raise ConfigError(f"Expected --KEY=VALUE or -c FILE, but got '{argument}'.{hint}")
        if argument.startswith("-c") and argument.endswith(YAML) and "=" not in argument:
            argument = f"-c={argument[2:]}"  # programs take -cFILE, too
        key, equals, value = argument.lstrip("-").partition("=")

        # Flags.
        if argument == "--help=all":
            flags.append("--help")
            continue
        if key in ("help", "h", "print_config"):
            flags.append(argument)
            continue
        if key.endswith(".help"):
            if not equals and queue and not queue[0].startswith("-"):
                argument += f"={queue.pop(0)}"  # the class whose help is asked for
            flags.append(argument)
            continue

        # Files and overrides. A value follows "=", or is the next argument.
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ConfigError(f"Expected a value for {argument}, as in {argument}=VALUE, but got none.")
            value = queue.pop(0)
        if key in ("c", "config"):
            files.append(value)
        else:
            overrides.append((key, value))
    return files, overrides, flags
