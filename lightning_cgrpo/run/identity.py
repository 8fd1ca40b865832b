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
    parts: Method = {}
    trainer = config.get("trainer") or {}
    given = learning({key: config.get(key) for key in ("model", "data", "callbacks")})
    for key in ("model", "data"):
        if (part := _reduced(given.get(key))) not in (None, {}):
            parts[key] = part
    # By class, because the name that a configuration gives to a callback changes nothing.
    named: dict[str, Any] = {}
    for callback in [*_listed(given.get("callbacks")), *_listed(trainer.get("callbacks"))]:
        # A class without arguments may stand for its name alone.
        reduced = _reduced({"class_path": callback} if is_class(callback) else callback)
        if reduced is not None:
            name = str(reduced.get("class_path", "callback")) if isinstance(reduced, dict) else str(reduced)
            named[name if name not in named else f"{name}_{len(named)}"] = reduced
    if named:
        parts["callbacks"] = dict(sorted(named.items()))
    precision = trainer.get("precision")
    if precision not in FULL_PRECISION:
        parts["precision"] = precision
    return parts


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


def _listed(callbacks: Any) -> Iterable[Any]:
    if isinstance(callbacks, Mapping) and "class_path" not in callbacks:
        return callbacks.values()
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _reduced(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        if "class_path" in value and only_shows(str(value["class_path"])):
            return None
        kept = {}
        for name, part in value.items():
            if (reduced := _reduced(part, str(name))) is not None:
                kept[str(name)] = reduced
        # Empty arguments and no arguments are the same.
        if kept.get("init_args") == {}:
            del kept["init_args"]
        return kept
    if isinstance(value, list):
        return [_reduced(part, key) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1.0 is the same setting as 1.
    if not isinstance(value, str):
        return value
    if key == "class_path":
        return class_name(value)
    if "." in value and is_class(value):  # A class without arguments may stand for its name alone.
        return {"class_path": class_name(value)}
    # Places differ between machines. A prefix such as "packaged:" is a part of the place.
    return PurePath(value).name.rpartition(":")[2] if key in PLACE_NAMES else value
