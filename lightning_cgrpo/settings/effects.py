"""The parts of a run that each setting changes: one table for every question about a run.

A run's name, its method and `study` count what changes learning. A resume tells all but what only shows or tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from typing import Any

from lightning_cgrpo.settings.signatures import NAMESPACES, PACKAGES, constant_of, is_there


class Effect(Enum):
    """A part of a run that a setting changes."""

    LEARNING = auto()
    """The trained policy."""
    COMPUTATION = auto()
    """Speed and rounding."""
    PLACE = auto()
    """The machine that computes."""
    LENGTH = auto()
    """The number of updates."""
    SEED = auto()
    """The seed of the run, which a run records apart."""
    EVALUATION = auto()
    """Validations, and learning by the dual's margin alone."""
    TEST = auto()
    """The measurements after training."""
    SHOWING = auto()
    """The screen, logs and files."""


EFFECTS = {
    "ckpt_path": Effect.SHOWING,
    "config": Effect.SHOWING,
    "verbose": Effect.SHOWING,
    "weights_only": Effect.SHOWING,
    "seed_everything": Effect.SEED,
    "trainer.max_steps": Effect.LENGTH,
    "trainer.max_epochs": Effect.LENGTH,
    "trainer.max_time": Effect.LENGTH,
    "trainer.min_steps": Effect.LENGTH,
    "trainer.min_epochs": Effect.LENGTH,
    "trainer.accelerator": Effect.PLACE,
    "trainer.devices": Effect.PLACE,
    "trainer.num_nodes": Effect.PLACE,
    "trainer.strategy": Effect.PLACE,
    "trainer.limit_predict_batches": Effect.TEST,
    "trainer.limit_test_batches": Effect.TEST,
    "trainer.barebones": Effect.SHOWING,
    "trainer.callbacks": Effect.SHOWING,
    "trainer.default_root_dir": Effect.SHOWING,
    "trainer.detect_anomaly": Effect.SHOWING,
    "trainer.enable_autolog_hparams": Effect.SHOWING,
    "trainer.enable_checkpointing": Effect.SHOWING,
    "trainer.enable_model_summary": Effect.SHOWING,
    "trainer.enable_progress_bar": Effect.SHOWING,
    "trainer.log_every_n_steps": Effect.SHOWING,
    "trainer.logger": Effect.SHOWING,
    "trainer.model_registry": Effect.SHOWING,
    "trainer.num_sanity_val_steps": Effect.SHOWING,
    "trainer.profiler": Effect.SHOWING,
    "model.eval_group_size": Effect.EVALUATION,
    "model.sampler.environment.vector": Effect.COMPUTATION,
    "data.eval_prompts": Effect.EVALUATION,
    "data.test_path": Effect.TEST,
    "data.test_prompts": Effect.TEST,
    "data.test_train_prompts": Effect.TEST,
}
"""Effects by dotted key, of the key and all keys below it. A key without a row changes learning.

Every other seed changes learning, too, because a seed that a configuration names doesn't follow the run's.
"""
ANYWHERE = {
    "cuda_graphs": Effect.COMPUTATION,
    "foreach": Effect.COMPUTATION,
    "fused": Effect.COMPUTATION,
    "micro_batch_size": Effect.COMPUTATION,
    "micro_batch_tokens": Effect.COMPUTATION,
}
"""Effects by the last part of a key."""
NUMBERLESS = (Effect.TEST, Effect.SHOWING)
"""Effects on no number of a training run."""
RUN_LENGTH = ("max_steps", "max_epochs", "limit_train_batches")
"""Trainer settings that a run records as its length; a limit of batches also changes learning."""
SAME_TEST_PROMPTS = ("data.eval_prompts", "data.prompts_per_update", "data.seed", "data.val_prompts")
"""Settings of the data that change no test prompt."""
PROMPTS_PLACES = ("data.path", "data.subset", "data.val_path")
"""Settings that name the files of prompts, whose fingerprints are compared instead."""
PLACE_NAMES = ("path", "model")
"""Last parts of keys that name a folder or a hub's model, where only the last part of the value counts."""
CONSTRAINTS = "model.objective.constraints"
"""The key above each constraint's name."""

MARK = "changes_learning"
"""A class whose body sets this to False only shows or saves."""
EVALUATES = "evaluation_arguments"
"""The arguments of a class of data that change evaluations alone, because its splits are drawn apart."""
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
SHIPPED = ("lightning", "torch")
"""Packages beside this distribution's whose classes are known by their last names."""


def effect_of(key: str, class_path: str = "") -> Effect:
    """The effect of a setting.

    Args:
        key: dotted, such as ``data.eval_prompts``, without ``init_args``.
        class_path: of the class whose argument it is, if known.

    Example:
        >>> effect_of("trainer.logger.save_dir").name, effect_of("model.optimizer.lr").name
        ('SHOWING', 'LEARNING')
        >>> effect_of("data.val_prompts").name, effect_of("data.val_prompts", "GridworldDataModule").name
        ('LEARNING', 'EVALUATION')
    """
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        above = EFFECTS.get(".".join(parts[:end]))
        if above is not None:
            return above
    if ".".join(parts[:3]) == CONSTRAINTS and parts[4:] == ["range"]:
        return Effect.SHOWING  # the range of a mean bounds intervals and certificates alone
    if class_path and parts[-1] in (constant_of(class_path, EVALUATES) or ()):
        return Effect.EVALUATION
    return ANYWHERE.get(parts[-1], Effect.LEARNING)


@cache
def only_shows(class_path: str) -> bool:
    """True for classes that only show or save: `LIGHTNINGS`, or marked with `MARK`."""
    name = class_name(class_path)
    if name in LIGHTNINGS:
        return True
    # A shipped class is found by its name, because its module may have moved; any other class by its path.
    return constant_of(name, MARK) is False or constant_of(class_path, MARK) is False


@cache
def class_name(class_path: str) -> str:
    """The name by which runs know a class: its last name, or its path if the last name is a shipped class's.

    Example:
        >>> class_name("lightning_cgrpo.callbacks.Pictures"), class_name("mine.Puzzle"), class_name("mine.Pictures")
        ('Pictures', 'Puzzle', 'mine.Pictures')
    """
    name = class_path.rpartition(".")[2]
    shipped = class_path.partition(".")[0] in (*PACKAGES, name, *SHIPPED)
    if shipped:
        return name
    has_namesake = any(is_there(f"{module}.{name}") for module in (*NAMESPACES, "torch.optim"))
    return class_path if has_namesake else name


def learning(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a nested configuration that change learning.

    Example:
        >>> learning({"data": {"class_path": "GridworldDataModule", "init_args": {"size": 10, "val_prompts": 5}}})
        {'data': {'class_path': 'GridworldDataModule', 'init_args': {'size': 10}}}
    """
    kept: dict[str, Any] = _learning_part(config, "", "")
    return kept


def _learning_part(value: Any, key: str, class_path: str) -> Any:
    """The parts of a value that change learning.

    Args:
        key: dotted key of the value, without ``init_args``.
        class_path: class whose arguments the value holds, if any.
    """
    if isinstance(value, list):
        return [_learning_part(part, key, class_path) for part in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for name, part in value.items():
        if name in ("init_args", "dict_kwargs"):
            arguments = _learning_part(part, key, str(value.get("class_path", "")))
            if arguments != {}:  # no arguments and none that change learning are the same
                kept[name] = arguments
        elif name == "class_path":
            kept[name] = part
        else:
            below = f"{key}.{name}" if key else str(name)
            if isinstance(part, Mapping) or effect_of(below, class_path) is Effect.LEARNING:
                kept[name] = _learning_part(part, below, "")
    return kept
