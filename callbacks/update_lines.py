"""The output under a plain `Trainer`: a line for each update, and the closing card."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich import get_console
from rich.text import Text

from lightning_cgrpo.callbacks.progress import ObjectiveProgressBar, furthest_constraints, short_name, weight_text
from lightning_cgrpo.callbacks.run_summary import RunSummary, updates_asked
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.objective import Objective

PAUSE = 1.0
"""Seconds between two lines, at least."""


class UpdateLines(RunSummary):
    """Prints ``Update 3 of 60: reward -0.79 λ 0.25, correct 0.590 < 0.8 λ 0.75``, at most once a second, and the card.

    A callback for the weights adds it to a `Trainer` that has neither `ObjectiveProgressBar` nor `RunSummary`.
    ``enable_progress_bar=False`` silences it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._printed = float("-inf")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: RolloutModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        update = trainer.global_step
        asked = updates_asked(trainer)
        is_due = update == asked or time.monotonic() - self._printed > PAUSE
        if not trainer.is_global_zero or not is_due:
            return
        progress = f"Update {update}" if asked is None else f"Update {update} of {asked}"
        line = f"{progress}: {update_line(pl_module.objective, pl_module.latest_metrics)}"
        get_console().print(Text(line), soft_wrap=True)
        self._printed = time.monotonic()

    def save(self, path: Path) -> None:
        """Write nothing: nobody asked for a file."""


def update_line(objective: Objective, latest: dict[str, float]) -> str:
    """The reward, and the measured constraints with thresholds and multipliers; of many, those furthest beyond."""
    texts = []
    if "reward/mean" in latest:
        texts.append(f"reward {latest['reward/mean']:.4g} {weight_text(latest, 'reward')}")
    for measured in furthest_constraints(objective, latest):
        texts.append(f"{short_name(measured.name)} {measured.compared} {weight_text(latest, measured.name)}")
    return ", ".join(text.rstrip() for text in texts)  # a monitored constraint has no weight


def shown_by_default(trainer: Trainer) -> list[Callback]:
    """`UpdateLines` for a trainer with a progress bar that prints nothing of the objective."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    prints = any(isinstance(callback, (ObjectiveProgressBar, RunSummary)) for callback in callbacks)
    has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
    return [UpdateLines()] if has_bar and not prints else []
