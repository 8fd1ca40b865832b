"""Progress bar with reward, rates, thresholds and multipliers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme

from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.standing import standing

MARKS = {"met": "", "missed": " !", "undecided": " ?", "": ""}


class ObjectiveProgressBar(RichProgressBar):
    """Counts updates, and shows the last logged values: ``reward 0.9 λ 0.6 | lava 0.03 (0.02-0.05) <= 0.01 ! λ 0.2``.

    Parentheses hold the 95 % interval of the rate, with prompts as clusters. ``!`` marks an interval beyond the
    threshold, ``?`` an interval on both sides of it; λ are multipliers.

    Args:
        refresh_rate: redraws per second.
    """

    changes_learning = False

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate, theme=RichProgressBarTheme(metrics_text_delimiter=" | "))

    @property
    def total_train_batches(self) -> int | float:
        """Updates over all epochs; infinite without a maximum."""
        return self.trainer.estimated_stepping_batches

    def on_train_epoch_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        """The bar continues over epochs."""

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if self.is_enabled and self.train_progress_bar_id is None:
            self._initialize_train_progress_bar_id()
            self._update(self.train_progress_bar_id, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: RolloutModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, trainer.global_step - 1)

    def get_metrics(self, trainer: Trainer, pl_module: RolloutModule) -> dict[str, Any]:
        objective, latest, rates = pl_module.objective, pl_module.latest_metrics, pl_module.latest_rates
        logged = super().get_metrics(trainer, pl_module)
        shown: dict[str, Any] = {
            name: f"{value:.3g}" if isinstance(value, float) else value
            for name, value in logged.items()
            if name != "v_num"
        }
        if "reward/mean" in latest:
            shown["reward"] = f"{latest['reward/mean']:.3g} λ {latest['multiplier/reward']:.2g}"
        for name, constraint in objective.constraints.items():
            tag = constraint.tag(name)
            if tag not in latest:
                continue
            bound = replace(constraint.bound, threshold=latest.get(f"threshold/{name}", constraint.bound.threshold))
            text = f"{latest[tag]:.3g}"
            interval = standing(bound, rates[name]) if name in rates else None
            if interval is not None:
                text += f" ({interval})" if interval.of_mean else f" ({interval.low:.2g}-{interval.high:.2g})"
            if bound.threshold is not None:
                text += f" {bound}{MARKS[interval.says] if interval is not None else ''}"
            if f"multiplier/{name}" in latest:
                text += f" λ {latest[f'multiplier/{name}']:.2g}"
            shown[name] = text
        return shown

    def _get_train_description(self, current_epoch: int) -> str:
        # Lightning shows "0/-2" epochs without a maximum.
        return "Updates"
