"""The method of a run: the settings that change learning, except the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from lightning_cgrpo.settings.configuration import Config, Resolved, get, is_class
from lightning_cgrpo.settings.effects import PLACE_NAMES, RUN_LENGTH, class_name, learning, only_shows

FULL_PRECISION = (None, "auto", "32-true", 32, "32")
"""Values of the trainer's precision that identify no method; what auto chooses depends on the machine."""

Method = dict[str, Any]


def method_of(config: Config) -> Method:
    """The parts of a resolved configuration that two runs of one method share."""
    method: Method = {}
    trainer = config.get("trainer") or {}
    learning_settings = learning({key: config.get(key) for key in ("model", "data", "callbacks")})
    for key in ("model", "data"):
        part = _reduce_value(learning_settings.get(key))
        if part not in (None, {}):
            method[key] = part

    # Callbacks by class, because the name that a configuration gives to a callback changes nothing.
    callbacks: dict[str, Any] = {}
    for callback in [*_list_callbacks(learning_settings.get("callbacks")), *_list_callbacks(trainer.get("callbacks"))]:
        # A class without arguments may stand for its name alone.
        reduced = _reduce_value({"class_path": callback} if is_class(callback) else callback)
        if reduced is None:
            continue
        name = str(reduced.get("class_path", "callback")) if isinstance(reduced, dict) else str(reduced)
        if name in callbacks:
            name = f"{name}_{len(callbacks)}"
        callbacks[name] = reduced
    if callbacks:
        method["callbacks"] = dict(sorted(callbacks.items()))
    precision = trainer.get("precision")
    if precision not in FULL_PRECISION:
        method["precision"] = precision
    return method


def identity_of(config: Config) -> dict[str, Any]:
    """Method, seed and length of a run, from the configuration as given: without defaults of classes.

    An option that no configuration names can therefore be added or removed without changing identities. Values of
    environment variables stay interpolations, because they may be secrets.
    """
    if isinstance(config, Resolved):
        config = config.environment.hidden(config)
    trainer = config.get("trainer") or {}
    length = {key: trainer[key] for key in RUN_LENGTH if trainer.get(key) is not None}
    return {"method": method_of(config), "seed": seed_of(config), "length": length}


def key_of(method: Mapping[str, Any]) -> str:
    """A text, equal for equal methods only."""
    return json.dumps(method, sort_keys=True)


def seed_of(config: Config) -> int | None:
    """The run's seed: ``seed_everything`` if a number, else the model's."""
    for seed in (config.get("seed_everything"), get(config, "model.init_args.seed")):
        if isinstance(seed, int) and not isinstance(seed, bool):
            return seed
    return None


def _list_callbacks(callbacks: Any) -> Iterable[Any]:
    """The callbacks of a mapping by name, of a list, or a single callback."""
    if isinstance(callbacks, Mapping) and "class_path" not in callbacks:
        return callbacks.values()
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _reduce_value(value: Any, key: str = "") -> Any:
    """A setting without the parts that make no other method, in the form that equal settings share."""
    if isinstance(value, Mapping):
        if "class_path" in value and only_shows(str(value["class_path"])):
            return None
        kept = {}
        for name, part in value.items():
            reduced = _reduce_value(part, str(name))
            if reduced is not None:
                kept[str(name)] = reduced
        # Empty arguments and no arguments are the same.
        if kept.get("init_args") == {}:
            del kept["init_args"]
        return kept
    if isinstance(value, list):
        return [_reduce_value(part, key) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 is the same setting as 1.
    if not isinstance(value, str):
        return value
    if key == "class_path":
        return class_name(value)
    if "." in value and is_class(value):  # A class without arguments may stand for its name alone.
        return {"class_path": class_name(value)}
    if key in PLACE_NAMES:
        # Places differ between machines. A prefix such as "packaged:" is a part of the place.
        return PurePath(value).name.rpartition(":")[2]
    return value
