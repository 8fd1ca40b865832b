"""Constrained GRPO in verl, by configuration alone; needs verl.

    VERL_USE_EXTERNAL_MODULES=lightning_cgrpo.verl python -m verl.trainer.main_ppo \
        algorithm.adv_estimator=constrained +lightning_cgrpo=objective.yaml ...

verl imports this module in each of its processes. The driver's trainers, v1 and v0, then have the method around their
own steps, which stay as they are:

    1. verl samples answers and calls the reward function, whose results are the signals.
    2. `Method` computes the advantages, and the dual takes a step.
    3. verl takes its optimizer steps, and logs ``rate/*``, ``weight/*`` and ``threshold/*`` beside its own metrics.

Checkpoints have the dual's state, so a resume is exact. docs/verl.md explains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.errors import MissingExtraError, UserError
from lightning_cgrpo.grpo.verl_rows import Method, Rows
from lightning_cgrpo.grpo.verl_settings import ESTIMATOR, settings_of
from lightning_cgrpo.objective.subsets import columns_of_rows

if find_spec("verl") is None:
    raise MissingExtraError(
        "Expected verl to be installed, but it is not, try pip install verl==0.9.1 in an environment of its own."
    )

import numpy as np
from verl.trainer.ppo import core_algos, ray_trainer

_method: Method | None = None
"""The method of this process's trainer; a driver has one trainer."""


def constrained(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray | None = None, **others: Any
) -> tuple[Tensor, Tensor]:
    """Advantages ``[N, T]`` of answers to equal prompts `index` ``[N]``, and the same as returns."""
    if _method is None or index is None:
        raise UserError(
            f"Expected one of verl's trainers around the estimator {ESTIMATOR}, but got none, try "
            "verl.trainer.main_ppo."
        )
    scores = token_level_rewards.sum(-1)  # [N]
    advantages = _method.estimate(scores, list(index))[:, None] * response_mask  # [N, T]
    return advantages, advantages


core_algos.register_adv_est(ESTIMATOR)(constrained)


def method_of(trainer: Any) -> Method | None:
    """The method of a trainer of verl, made with the trainer; None if it trains by another estimator."""
    method: Method | None = trainer.__dict__.get("constrained_grpo")
    return method


# ---------------------------------------------------------------------- around verl's steps


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function around one of verl's, which it gets as its first argument."""

    def decorate(function: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return function(original, *arguments, **named)

        setattr(owner, name, wrapped)

    return decorate


def install(trainer_class: Any) -> None:
    """Make, save and resume the method with a trainer of verl."""

    @around(trainer_class, "__init__")
    def _(original: Callable[..., None], self: Any, config: Any, *arguments: Any, **named: Any) -> None:
        global _method
        settings = settings_of(config)  # before verl loads anything
        original(self, config, *arguments, **named)
        _method = None if settings is None else Method(settings)
        self.constrained_grpo = _method

    @around(trainer_class, "_save_checkpoint")
    def _(original: Callable[..., Any], self: Any) -> Any:
        method = method_of(self)
        if method is not None:
            method.save(Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}")
        return original(self)

    @around(trainer_class, "_load_checkpoint")
    def _(original: Callable[..., Any], self: Any) -> Any:
        loaded = original(self)
        method = method_of(self)
        if method is None:
            return loaded
        # A step of the trainer v1 has as many updates as batches between its synchronizations.
        updates = self.total_training_steps * getattr(self, "parameter_sync_step", 1)
        dual = method.advantages.dual
        dual.targets.check_schedules(dual.constraints, updates)
        if self.global_steps > 0:
            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
            if trainer.resume_mode == "resume_path":
                folder = Path(trainer.resume_from_path)
            method.load(folder)
        return loaded


def install_v0() -> None:
    """The trainer before v1, which has signals in columns of the batch, and measures after each step."""
    install(ray_trainer.RayPPOTrainer)

    @around(ray_trainer, "compute_advantage")
    def _(original: Callable[..., Any], data: Any, *arguments: Any, **named: Any) -> Any:
        if _method is not None and _method.rows is None:
            columns = {name: values.tolist() for name, values in data.non_tensor_batch.items()}
            _method.rows = Rows(columns, prompt_columns(_method.columns, columns))
        return original(data, *arguments, **named)

    @around(ray_trainer, "compute_data_metrics")
    def _(original: Callable[..., dict[str, Any]], *arguments: Any, **named: Any) -> dict[str, Any]:
        metrics = original(*arguments, **named)
        if _method is None:
            return metrics
        return metrics | _method.take_logged()


def install_v1() -> None:
    """The trainer v1, whose batches are keys of its transfer queue."""
    import transfer_queue
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    install(PPOTrainer)

    @around(PPOTrainer, "_compute_advantage")
    def _(original: Callable[..., Any], self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        method = method_of(self)
        if method is not None:
            colocated = self.reward_loop_manager.reward_loop_worker_handles is None
            method.rows = queued_rows(transfer_queue, batch, method, colocated)
        return original(self, batch, metrics=metrics)

    @around(PPOTrainer, "step")
    def _(original: Callable[..., Any], self: Any, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        batch = original(self, metrics, timing_raw)
        # Not by verl's own means over batches, which take names with "max" or "sum" for maxima and sums.
        method = method_of(self)
        if method is not None:
            metrics.update(method.take_logged())
        return batch


def queued_rows(queue: Any, batch: Any, method: Method, colocated: bool) -> Rows:
    """The rows of a batch of v1.

    Args:
        colocated: a reward model on the trainer's own devices, whose results are fields of the queue.
    """

    def read_field(name: str) -> list[Any] | None:
        """The field's value of each row; None if not all rows have the field."""
        try:
            values = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[name])[name]
        except (KeyError, ValueError):
            return None
        return list(values.tolist() if hasattr(values, "tolist") else values)

    def read_fields(names: Iterable[str]) -> dict[str, list[Any]]:
        """The fields that all rows have, by name."""
        fields = {name: read_field(name) for name in names}
        return {name: values for name, values in fields.items() if values is not None}

    # The signals: fields of their own, or together in the extra fields of each row.
    if colocated:
        signals = read_fields(method.objective.signal_names)
    else:
        signals = reward_values(read_field("extra_fields") or [])
    # The columns of the prompts that constraints read.
    columns = method.columns
    stored: dict[str, list[Any]] = {}
    if columns:
        stored = read_fields([*columns, "extra_info"])
    # A key names an answer and its part: {uid}_{session}_{part}.
    sessions: list[tuple[str, int]] = []
    for key in batch.keys:
        session, part = key.rsplit("_", 1)
        sessions.append((session, int(part)))
    padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
    return Rows(signals, prompt_columns(columns, stored), sessions, padding)


def reward_values(extra_fields: Sequence[Any]) -> dict[str, list[Any]]:
    """The values that the reward function returned, by name: one for each row, None where a row has none."""
    returned = [(extra or {}).get("reward_extra_info") or {} for extra in extra_fields]
    return columns_of_rows(returned)


def prompt_columns(names: list[str], stored: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns of the data set by name, or else keys of its column ``extra_info``."""
    extra_rows: list[Mapping[str, Any]] = []
    for row in stored.get("extra_info", ()):
        extra_rows.append(row if isinstance(row, Mapping) else {})
    columns: dict[str, list[Any]] = {}
    for name in names:
        if name in stored:
            columns[name] = stored[name]
        elif any(name in row for row in extra_rows):
            columns[name] = [row.get(name) for row in extra_rows]
    return columns


install_v0()
if find_spec("transfer_queue") is not None:  # v1 needs it
    install_v1()
