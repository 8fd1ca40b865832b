"""Configuration files and overrides become one plain configuration, without importing torch or Lightning.

A later layer changes single values of earlier layers. A new `class_path` drops the old class's `init_args`.
Interpolations ``${a.b}`` are resolved last, so they follow overrides; what a run writes keeps ``${oc.env:NAME}``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.settings.settings import with_hash

CONFIGURATION = "config.yaml"
"""The file that a run writes its settings into, in its folder."""
PACKAGED = Path(__file__).parents[1] / "configs"
DEFAULTS = PACKAGED / "defaults.yaml"
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
ENVIRONMENT = ("oc.env:", "oc.decode:", "oc.create:")
"""Resolvers that read the environment, or read a text that may come from the environment a second time."""

Config = dict[str, Any]


class ConfigError(UserError):
    """A wrong configuration."""


@dataclass(frozen=True)
class Layer:
    """A file, or an override from the command line.

    Args:
        label: the layer's part of a run's name: a file's stem, or ``key=value``.
    """

    config: Config
    label: str
    is_override: bool = False


def file_layer(name: str) -> Layer:
    """The layer of a configuration file, merged over the file that its key ``base`` names."""
    path = find_file(name)
    return Layer(_read_over_base(path, ()), path.stem)


def _read_over_base(path: Path, above: tuple[Path, ...]) -> Config:
    """The settings of a file, merged over its base; `above` are the files that name it as their base."""
    config = read_file(path)
    base = config.pop("base", None)
    if base is None:
        return config
    file = path.parent / str(base)
    if not file.is_file() or file in (path, *above):
        raise ConfigError(f"Expected base in {path} to name another file, relative to {path.parent}, but got {base}.")
    below = _read_over_base(file, (path, *above))
    _check_callbacks(below, config)
    merged: Config = merge(below, config)
    return merged


def override_layer(key: str, text: str) -> Layer:
    """The layer of ``--KEY=TEXT``; ``--KEY+=TEXT`` appends to a list."""
    value = _parse_value(key, text)
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}

    # The label: the last words of the key, and a short form of the value.
    words = [word for word in key.split(".") if word != "init_args"]
    # Two words, because the last word alone is the same for two parts, such as the thresholds of two constraints.
    last_words = words[-2:] if len(words) > 2 else words[-1:]
    name = ".".join(last_words).removesuffix("_everything")
    short_value = value.rpartition(".")[2] if is_class(value) else text.rpartition("/")[2].strip("{}[] ")
    return Layer(nested, f"{name}={short_value}", is_override=True)


def merge_layers(layers: Iterable[Layer]) -> Config:
    """Merge layers in order, without resolving interpolations."""
    config: Config = {}
    for layer in layers:
        _check_callbacks(config, layer.config)
        config = merge(config, layer.config)
    return config


class Environment:
    """The interpolations of the environment, which a run writes in its files instead of their values.

    Values of environment variables may be secrets.

    Args:
        config: a merged configuration, interpolations unresolved.
    """

    def __init__(self, config: Config) -> None:
        self.declared = _resolve(_escape_environment(config))

    def hidden(self, content: Any, section: str = "") -> Any:
        """Plain containers: `content` with the interpolations of the environment at their places.

        Args:
            section: dotted path of the configuration at which `content` stands; empty for the top.
        """
        declared = get(self.declared, section) if section else self.declared
        return _put_interpolations(content, declared)

    def fingerprinted(self, content: Any) -> Any:
        """As `hidden`, with two bytes of a hash of each value: enough to see a change, too few to guess a secret."""
        return _put_interpolations(content, self.declared, with_hash)

    def hidden_yaml(self, text: str) -> str:
        """A configuration in YAML with the interpolations; its first comment stays."""
        import yaml

        if not any(name in repr(self.declared) for name in ENVIRONMENT):
            return text
        comment = text[: text.index("\n") + 1] if text.startswith("#") else ""
        hidden: str = yaml.safe_dump(self.hidden(yaml.safe_load(text)), sort_keys=False, allow_unicode=True)
        return comment + hidden


class Resolved(dict[str, Any]):
    """A configuration without interpolations.

    `environment` has the interpolations that read environment variables. `run` is the folder of the run whose own
    ``config.yaml`` was read, if a command names one.
    """

    run: Path | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(_resolve(config))
        self.environment = Environment(config)

    def replaced(self, **parts: Any) -> Resolved:
        """A copy with other `parts`, and the same interpolations."""
        other = copy(self)
        other.update(parts)
        return other


def build(layers: Iterable[Layer]) -> Resolved:
    """Merge layers and resolve interpolations."""
    return Resolved(merge_layers(layers))


def _resolve(config: Config) -> Config:
    """A copy of a configuration with its interpolations resolved."""
    # Without OmegaConf where possible: it takes longer than all other reading, and a study reads for each of its runs.
    if "${" not in repr(config):
        return {str(key): deepcopy(value) for key, value in config.items()}
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        missing = str(error).split("'")[1] if "'" in str(error) else ""
        hint = did_you_mean(missing, _all_keys(config))
        raise ConfigError(f"The value of '{key}' can't be resolved: {_one_line(error)}.{hint}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _reads_environment(text: Any) -> bool:
    return isinstance(text, str) and any(name in text for name in ENVIRONMENT)


def _escape_environment(content: Any) -> Any:
    """The configuration, in which OmegaConf leaves a text that reads the environment as the text was declared."""
    if isinstance(content, Mapping):
        return {key: _escape_environment(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_escape_environment(value) for value in content]
    if _reads_environment(content):
        return content.replace("${", "\\${")
    return content


def _put_interpolations(content: Any, declared: Any, show: Callable[[str, Any], str] = lambda text, _: text) -> Any:
    """`content` with the texts of `declared` that read the environment.

    Args:
        show: gives the text to write for an interpolation and its value.
    """
    if _reads_environment(declared):
        return show(declared, content)
    if isinstance(content, Mapping):
        texts = declared if isinstance(declared, Mapping) else {}
        return {key: _put_interpolations(value, texts.get(key), show) for key, value in content.items()}
    if isinstance(content, list | tuple):
        items = declared if isinstance(declared, list) else []
        values = []
        for number, value in enumerate(content):
            item = items[number] if number < len(items) else None
            values.append(_put_interpolations(value, item, show))
        return type(content)(values)
    return content


def _check_callbacks(config: Config, layer: Config) -> None:
    """Refuse a misspelled name in `layer`, which would add another callback."""
    present = config.get("callbacks")
    names = layer.get("callbacks")
    if isinstance(names, (list, str)):
        kind = "list" if isinstance(names, list) else "string"
        raise ConfigError(
            "Expected callbacks to be a mapping from names to callbacks, like {multipliers: {class_path: "
            f"LagrangianCallback}}}}, but got a {kind}."
        )
    if not isinstance(present, Mapping) or not isinstance(names, Mapping):
        return
    for key in names:
        name = str(key)
        similar = difflib.get_close_matches(name, present, n=1, cutoff=0.8)
        # A longer name, such as "checkpoints_best" beside "checkpoints", means another callback.
        if similar and name not in present and not name.startswith(similar[0]):
            raise ConfigError(
                f"Unknown key '{name}' in callbacks. Did you mean '{similar[0]}'? (To add another callback, give it "
                "a name that differs more.)"
            )


def find_file(name: str) -> Path:
    """Path of the named file, or else of the packaged file."""
    path = Path(name)
    if path.is_file():
        return path
    in_package = path.relative_to("configs") if path.parts[:1] == ("configs",) else path
    packaged = PACKAGED / in_package
    if not path.is_absolute() and packaged.is_file():
        return packaged
    if (path / CONFIGURATION).is_file():
        raise ConfigError(
            f"Expected a configuration file, but '{name}' is a run's folder, try -c {path / CONFIGURATION}."
        )
    beside = sorted(str(file) for file in path.parent.glob("*.yaml"))
    shipped = sorted(str("configs" / file.relative_to(PACKAGED)) for file in PACKAGED.rglob("*.yaml"))
    raise ConfigError(f"There is no configuration file '{name}'.{did_you_mean(name, beside + shipped)}")


def read_file(path: Path) -> Config:
    """A YAML file's mapping as plain containers, interpolations unresolved."""
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    try:
        stat = path.stat()
        plain = deepcopy(_cached_content(path.resolve(), stat.st_mtime_ns, stat.st_size))
    except (yaml.YAMLError, OSError, UnicodeDecodeError, OmegaConfBaseException) as error:
        mark = getattr(error, "problem_mark", None)
        hint = ""
        if mark is not None:
            marked_line = path.read_text(encoding="utf-8").split("\n")[mark.line : mark.line + 1]
            if any(line.lstrip(" ").startswith("\t") for line in marked_line):
                hint = ", try spaces instead of the tab"
        raise ConfigError(f"{path} can't be read: {_one_line(error)}{hint}.") from error
    if not plain and not path.read_text(encoding="utf-8").strip():
        raise ConfigError(f"Expected {path} to hold settings, but it has none, try saving it, or go without -c {path}.")
    if not isinstance(plain, dict):
        raise ConfigError(f"Expected {path} to hold a mapping of settings, but got {type(plain).__name__}.")
    return {str(key): value for key, value in plain.items()}


@cache
def _cached_content(path: Path, changed: int, size: int) -> Any:
    """Read a file once until its time or size changes, because a study's runs share their files."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def merge(base: Any, override: Any) -> Any:
    """`override` laid over `base`: mappings merge by key, other values and other classes replace.

    A key that ends with ``+`` appends its value to a list.
    """
    # The name of a class is a class without arguments.
    if isinstance(override, str) and isinstance(base, Mapping) and "class_path" in base:
        override = {"class_path": override}
    if isinstance(override, Mapping) and is_class(base) and base not in override:
        base = {"class_path": base}
    if not isinstance(base, Mapping) or not isinstance(override, Mapping):
        return override

    # Other settings of a class are its arguments; arguments of another class are dropped.
    if "class_path" in base and override.keys().isdisjoint(CLASS_KEYS):
        override = {"init_args": override}
    base_class = base.get("class_path")
    if short_class(override.get("class_path", base_class)) != short_class(base_class):
        return dict(override)

    merged = dict(base)
    for key, value in override.items():
        if isinstance(key, str) and key.endswith("+"):
            list_key = key[:-1]
            merged[list_key] = [*_as_list(merged.get(list_key)), value]
        elif key in base:
            merged[key] = merge(base[key], value)
        else:
            merged[key] = value
    return merged


def get(config: Any, path: str) -> Any:
    """The value at a dotted path, or None."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def is_class(value: Any) -> bool:
    """True for a text that looks like a class's name or path (capitalized)."""
    name = value.rpartition(".")[2] if isinstance(value, str) else ""
    return name.isidentifier() and name[0].isupper()


def short_class(value: Any) -> str:
    """A class's name without its module."""
    if isinstance(value, Mapping):
        value = value.get("class_path")
    return str(value).rpartition(".")[2] if value else ""


def _as_list(value: Any) -> list[Any]:
    """The value as a list; None and booleans (a logger switched on or off) give []."""
    if isinstance(value, list):
        return value
    if value is None or isinstance(value, bool):
        return []
    return [value]


def _parse_value(key: str, text: str) -> Any:
    """The value of a text in YAML; the text itself where YAML would cut it, at a comment or a new line."""
    if re.search(r"\n|(^|\s)#", text) and not text.startswith(("[", "{", '"', "'")):
        return text
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # OmegaConf's YAML reads 1e-3 as a number.
        return OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)["value"]  # type: ignore[call-overload,index]
    except yaml.YAMLError as error:
        if "duplicate key" in str(error):
            raise ConfigError(f"The value of '{key}' can't be read: {_one_line(error)}.") from error
        return text
    except OmegaConfBaseException as error:
        raise ConfigError(f"The value of '{key}' can't be read: {_one_line(error)}.") from error


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
