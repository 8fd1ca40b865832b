"""The method of a run: the settings that change learning, except the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

from lightning_cgrpo.cli.configuration import Config, get, is_class, short_class
from lightning_cgrpo.cli.key_check import constant_of
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.objective import Objective

MARK = "changes_learning"
"""A class whose body sets this to False only shows or saves, and is no part of a method."""
LIGHTNINGS = {
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "ThroughputMonitor",
}
"""Lightning's callbacks that only show or save."""
EVALUATING = {
    "eval_group_size",
    "eval_prompts",
    "max_eval_prompts",
    "test_prompts",
    "test_train_prompts",
    "val_prompts",
}
"""Settings for evaluations only."""
COMPUTING = {"foreach", "fused", "micro_batch_size", "micro_batch_tokens"}
"""Settings that change the computation, not the result."""
SEEDS = {"seed", "seed_everything"}
PLACES = {"path", "model"}
"""Settings that name a folder or a hub's model: only the last part counts, because places differ between machines."""
PRECISION = "32-true"

Method = dict[str, Any]


def method_of(config: Config, weights: str | None = None) -> Method:
    """The parts of a resolved configuration that two runs of one method share.

    Args:
        weights: fingerprint of the policy's starting weights.
    """
    parts: Method = {}
    for key in ("model", "data"):
        if (part := _reduced(config.get(key))) not in (None, {}):
            parts[key] = part
    trainer = config.get("trainer") or {}
    # By class, because the name that a configuration gives to a callback changes nothing.
    named: dict[str, Any] = {}
    for callback in [*_listed(config.get("callbacks")), *_listed(trainer.get("callbacks"))]:
        # A class without arguments may stand for its name alone.
        reduced = _reduced({"class_path": callback} if is_class(callback) else callback)
        if reduced is not None:
            name = str(reduced.get("class_path", "callback")) if isinstance(reduced, dict) else str(reduced)
            named[name if name not in named else f"{name}_{len(named)}"] = reduced
    if named:
        parts["callbacks"] = dict(sorted(named.items()))
    precision = trainer.get("precision")
    if precision not in (None, PRECISION, 32, "32"):
        parts["precision"] = precision
    if weights is not None:
        parts["weights"] = weights
    return parts


def key_of(method: Mapping[str, Any]) -> str:
    """A text, equal for equal methods only."""
    return json.dumps(method, sort_keys=True)


def seed_of(config: Config) -> int | None:
    """The run's seed: ``seed_everything`` if a number, else the model's."""
    for seed in (config.get("seed_everything"), get(config, "model.init_args.seed")):
        if isinstance(seed, int) and not isinstance(seed, bool):
            return seed
    return None


def constraints_of(method: Mapping[str, Any]) -> dict[str, Constraint] | None:
    """The declared constraints; None if the objective can't be read."""
    objective = get(method, "model.init_args.objective")
    if isinstance(objective, Mapping) and isinstance(objective.get("init_args"), Mapping):
        objective = objective["init_args"]
    if not isinstance(objective, Mapping):
        return None
    try:
        return Objective.declared(objective).constraints
    except (UserError, TypeError):
        return None


@cache
def only_shows(class_path: str) -> bool:
    """True for classes that only show or save: `LIGHTNINGS`, or marked with `MARK`.

    Names come before paths, because modules may have moved.
    """
    name = short_class(class_path)
    return name in LIGHTNINGS or any(constant_of(path, MARK) is False for path in (name, class_path))


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
            if name not in SEEDS | EVALUATING | COMPUTING and (reduced := _reduced(part, str(name))) is not None:
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
        return short_class(value)
    # A prefix such as "packaged:" is a part of the place.
    return PurePath(value).name.rpartition(":")[2] if key in PLACES else value
