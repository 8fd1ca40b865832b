"""What of a run's configuration makes its method: everything that changes learning, but the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from lightning_cgrpo.cli.configuration import Config
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.objective import Objective

SHOWING = {
    "Checkpoints",
    "DeviceStatsMonitor",
    "EffectiveWeights",
    "DrivePictures",
    "DrivingScores",
    "EvaluationTable",
    "InitialRates",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "ObjectiveProgressBar",
    "OnExceptionCheckpoint",
    "Pictures",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "SampleAnswers",
    "SavePretrained",
    "StallDetector",
    "TQDMProgressBar",
    "TensorBoardLayout",
    "ThroughputMonitor",
    "WritePredictions",
}
"""Classes that only show or save. Any other callback counts."""
EVALUATING = {
    "eval_group_size",
    "eval_prompts",
    "max_eval_prompts",
    "test_prompts",
    "test_train_prompts",
    "val_prompts",
}
"""Settings of model and data that only evaluations know."""
COMPUTING = {"foreach", "fused", "micro_batch_size"}
"""Settings by which the same is computed in another way."""
SEEDS = {"seed", "seed_everything"}
PLACES = {"path", "model"}
"""Settings that name a folder or a hub's model, which lies elsewhere on another machine: their last part counts."""
PRECISION = "32-true"

Method = dict[str, Any]


def method_of(config: Config, weights: str | None = None) -> Method:
    """The parts of a resolved configuration that two runs of one method share.

    Settings that are null are left out, as if they weren't there, and classes are named without their modules.

    Args:
        weights: fingerprint of the saved weights that the policy began from.
    """
    parts: Method = {}
    for key in ("model", "data"):
        if (part := _reduced(config.get(key))) not in (None, {}):
            parts[key] = part
    trainer = config.get("trainer") or {}
    callbacks = [*_listed(config.get("callbacks")), *_listed(trainer.get("callbacks"))]
    counting = [reduced for callback in callbacks if (reduced := _reduced(callback)) is not None]
    if counting:
        # By class: the name that a configuration gives to a callback changes nothing.
        named: dict[str, Any] = {}
        for callback in counting:
            name = str(callback.get("class_path", "callback")) if isinstance(callback, dict) else str(callback)
            named[name if name not in named else f"{name}_{len(named)}"] = callback
        parts["callbacks"] = dict(sorted(named.items()))
    precision = trainer.get("precision")
    if precision not in (None, PRECISION, 32, "32"):
        parts["precision"] = precision
    if weights is not None:
        parts["weights"] = weights
    return parts


def key_of(method: Mapping[str, Any]) -> str:
    """The same text for the same method."""
    return json.dumps(method, sort_keys=True)


def seed_of(config: Config) -> int | None:
    """The run's seed: ``seed_everything``, or the model's where that isn't a number."""
    model = config.get("model") or {}
    for seed in (config.get("seed_everything"), (model.get("init_args") or {}).get("seed")):
        if isinstance(seed, int) and not isinstance(seed, bool):
            return seed
    return None


def constraints_of(method: Mapping[str, Any]) -> dict[str, Constraint] | None:
    """The constraints that a method's objective declares; none if it can't be told."""
    objective = get(method, "model.init_args.objective")
    if isinstance(objective, Mapping) and isinstance(objective.get("init_args"), Mapping):
        objective = objective["init_args"]
    if not isinstance(objective, Mapping):
        return None
    try:
        return Objective.declared(objective).constraints
    except (UserError, TypeError):
        return None


def get(config: Any, path: str) -> Any:
    """The value at a dotted path, or none."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _listed(callbacks: Any) -> Iterable[Any]:
    if isinstance(callbacks, Mapping) and "class_path" not in callbacks:
        return callbacks.values()
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _reduced(value: Any, key: str = "") -> Any:
    """Without seeds, nulls and what only shows; None for what is left out altogether."""
    if isinstance(value, Mapping):
        if str(value.get("class_path")).rpartition(".")[2] in SHOWING:
            return None
        kept = {}
        for name, part in value.items():
            if name not in SEEDS | EVALUATING | COMPUTING and (reduced := _reduced(part, str(name))) is not None:
                kept[str(name)] = reduced
        # A class without arguments is written with empty ones, or without.
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
        return value.rpartition(".")[2]
    # A prefix such as "packaged:" tells where the model lies, too.
    return PurePath(value).name.rpartition(":")[2] if key in PLACES else value
