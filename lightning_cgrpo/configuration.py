"""Configuration files and overrides become one plain configuration, before anything heavy is imported.

Files are stacked by name: a later file, and after all files the command line, changes single values of what came
before. Where a `class_path` changes, the old class's `init_args` go with it. Interpolations ``${a.b}`` are resolved at
the very end, so they follow overrides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_cgrpo.errors import UserError, did_you_mean

PACKAGED = Path(__file__).parent / "configs"
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")

Config = dict[str, Any]


class ConfigError(UserError):
    """A configuration can't be read or doesn't fit together."""


def build(files: Iterable[str], overrides: Iterable[tuple[str, str]]) -> Config:
    """Merge files and overrides ``(dotted.key, text)``, and resolve interpolations.

    Raises:
        ConfigError: naming the file, key or interpolation that is wrong.
    """
    config: Config = {}
    layers = [read(find(name)) for name in files]
    layers += [_nested(key, _parse_value(key, text)) for key, text in overrides]
    for layer in layers:
        _check_callbacks(config, layer)
        config = merge(config, layer)
    return _resolve(config)


def _check_callbacks(config: Config, layer: Config) -> None:
    """Any name adds a callback, so a misspelled one would leave the callback that is meant as it was."""
    known, names = config.get("callbacks"), layer.get("callbacks")
    if not isinstance(known, Mapping) or not isinstance(names, Mapping):
        return
    for name in map(str, names):
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        # Longer names ("checkpoints_best" beside "checkpoints") are meant as others.
        if similar and name not in known and not name.startswith(similar[0]):
            raise ConfigError(
                f"Unknown key '{name}' in callbacks. Did you mean '{similar[0]}'? (To add another callback, give it "
                "a name that differs more.)"
            )


def find(name: str) -> Path:
    """The file of that name, or the packaged one where there is none: ``configs/gridworld.yaml`` works anywhere."""
    path = Path(name)
    if path.is_file():
        return path
    packaged = PACKAGED / (path.relative_to("configs") if path.parts[:1] == ("configs",) else path)
    if not path.is_absolute() and packaged.is_file():
        return packaged
    known = sorted(str("configs" / file.relative_to(PACKAGED)) for file in PACKAGED.rglob("*.yaml"))
    raise ConfigError(f"There is no configuration file '{name}'.{did_you_mean(name, known)}")


def read(path: Path) -> Config:
    """A YAML file as plain containers.

    Raises:
        ConfigError: if it isn't YAML or not a mapping.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.load(path)
    except (yaml.YAMLError, OSError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} can't be read: {_one_line(error)}.") from error
    plain = OmegaConf.to_container(content, resolve=False)
    if not isinstance(plain, dict):
        raise ConfigError(f"Expected {path} to hold a mapping of settings, but got {type(plain).__name__}.")
    return {str(key): value for key, value in plain.items()}


def merge(base: Any, override: Any) -> Any:
    """`override` laid over `base`, by name."""
    if isinstance(override, str) and isinstance(base, Mapping) and "class_path" in base:
        override = {"class_path": override}
    if isinstance(override, Mapping) and _is_class(base) and base not in override:
        base = {"class_path": base}
    if not isinstance(base, Mapping) or not isinstance(override, Mapping):
        return override
    if "class_path" in base and override.keys().isdisjoint(CLASS_KEYS):
        override = {"init_args": override}
    if _class_name(override, base) != _class_name(base, base):
        return dict(override)
    merged = dict(base)
    for key, value in override.items():
        merged[key] = merge(base[key], value) if key in base else value
    return merged


def _is_class(value: Any) -> bool:
    name = value.rpartition(".")[2] if isinstance(value, str) else ""
    return name.isidentifier() and name[0].isupper()


def _class_name(config: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Short, since a class may be given by its full path in one place and by its name in another."""
    return str(config.get("class_path", default.get("class_path"))).rpartition(".")[2]


def _nested(key: str, value: Any) -> Config:
    for part in reversed(key.split(".")):
        value = {part: value}
    nested: Config = value
    return nested


def _parse_value(key: str, text: str) -> Any:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # OmegaConf's YAML reads 1e-3 as a number.
        return OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)["value"]  # type: ignore[call-overload,index]
    except yaml.YAMLError:
        return text
    except OmegaConfBaseException as error:
        raise ConfigError(f"The value of '{key}' can't be read: {_one_line(error)}.") from error


def _resolve(config: Config) -> Config:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        words = list(_all_keys(config))
        missing = str(error).split("'")[1] if "'" in str(error) else ""
        hint = did_you_mean(missing, words)
        raise ConfigError(f"The value of '{key}' can't be resolved: {_one_line(error)}.{hint}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _all_keys(config: Any, prefix: str = "") -> Iterable[str]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield f"{prefix}{key}"
            yield from _all_keys(value, f"{prefix}{key}.")


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or getattr(error, "context", None)
        return f"line {mark.line + 1}: {problem}"
    return " ".join(str(error).split("\n")[0].split()).rstrip(".")
