"""Charts and pictures in the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from lightning_cgrpo.callbacks.log_writers import writers
from lightning_cgrpo.callbacks.run_summary import RunSummary
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import MERIT
from lightning_cgrpo.tasks.task import Renderer


def custom_scalars(objective: Objective) -> dict[str, dict[str, list[Any]]]:
    """Lay out TensorBoard's *Custom Scalars*: each rate or mean of training and validation with its threshold."""
    charts: dict[str, list[Any]] = {"reward": ["Multiline", ["^(val/)?reward/mean$"]]}
    for name, constraint in objective.constraints.items():
        kind = constraint.bound.kind
        tag = re.escape(name)
        charts[f"{kind} of {name}"] = ["Multiline", [f"^(val/)?{kind}/{tag}$", f"^threshold/{tag}$"]]
    charts["multipliers"] = ["Multiline", ["^multiplier/.*"]]
    charts["effective weights"] = ["Multiline", ["^effective_weight/.*"]]
    charts["informative groups"] = ["Multiline", ["^groups/informative/.*"]]
    return {"objective": charts}


class TensorBoardLayout(Callback):
    """Writes `custom_scalars` and, for *HParams*, the settings of the run when training starts."""

    changes_learning = False

    def on_train_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_custom_scalars(custom_scalars(pl_module.objective))
                writer = logger.experiment._get_file_writer()
                metrics = dict.fromkeys(compared_tags(pl_module), 0.0)
                for summary in hparams(hyperparameters(trainer, pl_module), metrics):
                    writer.add_summary(summary)


def compared_tags(module: RolloutModule) -> list[str]:
    """Tags whose last values *HParams* compares."""
    tags = ["reward/mean"]
    for name, constraint in module.objective.constraints.items():
        tags.append(constraint.bound.tag(name))
    return [f"val/{MERIT}", *tags, *(f"val/{tag}" for tag in tags)]


def hyperparameters(trainer: Trainer, module: RolloutModule) -> dict[str, float | str | bool]:
    """The settings that change learning, by path; without a configuration those that every module has."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    methods = [callback.record.method for callback in callbacks if isinstance(callback, RunSummary)]
    method: dict[str, Any] = methods[0] if methods else {}
    settings = {path.replace("init_args.", ""): value for path, value in _plain_values(method, "")}
    return {"seed": module.seed, "model.group_size": module.group_size, **settings}


def _plain_values(value: Any, path: str) -> Iterator[tuple[str, float | str | bool]]:
    """Numbers and texts in nested settings, with their paths."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _plain_values(part, f"{path}.{key}".lstrip("."))
    elif isinstance(value, (bool, int, float)):
        yield path, value
    elif value is not None:
        yield path, str(value)


class Pictures(Callback):
    """Draws answers to the first `prompts` prompts of every n-th update's batch.

    Args:
        renderer: by default the sampler's environment, if it draws itself, as `Gymnasium` does.

    Raises:
        UserError: (when training starts) there is no renderer.
    """

    changes_learning = False

    def __init__(self, renderer: Renderer | None = None, every_n_updates: int = 500, prompts: int = 1) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        expect(prompts >= 1, "prompts", "at least 1", prompts)
        self.renderer = renderer
        self.every_n_updates = every_n_updates
        self.prompts = prompts

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        renderer = self.renderer or getattr(pl_module.sampler, "environment", None)
        if not isinstance(renderer, Renderer):
            raise UserError("Expected a renderer for Pictures, but got none, try GridworldRenderer or one of your own.")
        self._renderer = renderer

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        update = trainer.global_step - 1
        if update % self.every_n_updates:
            return
        for writer in writers(trainer):
            for row in range(min(self.prompts, len(outputs["prompts"]))):
                figure = self._renderer.render(outputs["prompts"], outputs["rollouts"], outputs["signals"], row)
                writer.add_figure(f"episodes/{row}", figure, update)
