"""A line of progress, and a table of rates and multipliers every few updates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich import get_console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.units import unit_of

TABLES = 10
"""Tables of a run."""
FEWEST = 10
"""Fewest updates between two tables."""
ROWS = 12
"""Constraints in a table; of more constraints, those furthest beyond their thresholds."""
LONGEST = 24
"""Characters of a name in the line."""
SILENCE = 60.0
"""Seconds between two lines without a terminal."""


class ObjectiveProgressBar(RichProgressBar):
    """Shows ``2/3 met, worst NC 0.880 < 0.95, reward 0.91``, and every few updates a table of all constraints.

    The last update's rates decide which constraints are met. The table adds intervals of 95 %, with prompts as
    clusters, and multipliers λ. Files and notebooks get a line beside each table, and at least every minute.

    Args:
        every_n_updates: updates between tables; by default a tenth of the run, at least 10.
    """

    changes_learning = False

    def __init__(self, every_n_updates: int | None = None) -> None:
        super().__init__(refresh_rate=10)
        self.every_n_updates = every_n_updates
        self._began = time.monotonic()
        self._printed = self._began
        self._first = 0

    @property
    def is_enabled(self) -> bool:
        # Elsewhere rich would print the finished bar alone, and in a notebook ask for ipywidgets.
        return super().is_enabled and get_console().is_terminal

    @property
    def total_train_batches(self) -> int | float:
        """Updates over all epochs; infinite without a maximum."""
        return self.trainer.estimated_stepping_batches

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        # Only the bar gives way on a narrow terminal, then the end of the text.
        count = Column(no_wrap=True)
        text = Column(no_wrap=True, overflow="ellipsis")
        return [
            BarColumn(20, pulse_style="bar.complete"),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=count),
            TimeElapsedColumn(table_column=count.copy()),
            TextColumn("{task.description}", markup=False, table_column=text),
        ]

    def on_train_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._began = time.monotonic()
        self._printed = self._began
        self._first = trainer.global_step

    def _should_update(self, current: int, total: int | float) -> bool:
        """Lightning 2.6.0 asks, and its `refresh_rate` counts updates; later versions refresh ten times a second."""
        return True

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
        is_due = trainer.is_global_zero and trainer.global_step % self._updates_between_tables() == 0
        if is_due or self._was_silent:
            total = self.total_train_batches
            self._print_line(f"Update {trainer.global_step} of {total:.0f}: {self._status_line(trainer, pl_module)}")
        if is_due and pl_module.latest_metrics:
            print_table(progress_table(pl_module))

    def _updates_between_tables(self) -> int:
        if self.every_n_updates:
            return self.every_n_updates
        total = self.total_train_batches
        if total == float("inf"):
            return 100
        return max(int(total) // TABLES, FEWEST)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        super().on_validation_batch_end(trainer, *args)
        self._after_silence(f"{self.validation_description}: batch {args[3] + 1}")

    def on_test_batch_end(self, trainer: Trainer, *args: Any) -> None:
        super().on_test_batch_end(trainer, *args)
        self._after_silence(f"{self.test_description}: batch {args[3] + 1}")

    def on_predict_batch_end(self, trainer: Trainer, *args: Any) -> None:
        super().on_predict_batch_end(trainer, *args)
        self._after_silence(f"{self.predict_description}: batch {args[3] + 1}")

    @property
    def _was_silent(self) -> bool:
        """True on the first process of a run without a terminal that has printed nothing for `SILENCE` seconds."""
        return not self.is_enabled and self.trainer.is_global_zero and time.monotonic() - self._printed > SILENCE

    def _after_silence(self, line: str) -> None:
        if self._was_silent:
            self._print_line(line)

    def _print_line(self, line: str) -> None:
        get_console().print(Text(line), soft_wrap=True)
        self._printed = time.monotonic()

    def _update_metrics(self, trainer: Trainer, pl_module: RolloutModule, *_: Any, **__: Any) -> None:
        if self.progress is not None and self.train_progress_bar_id is not None:
            self.progress.update(self.train_progress_bar_id, description=self._status_line(trainer, pl_module))

    def _status_line(self, trainer: Trainer, pl_module: RolloutModule) -> str:
        """The objective, the metrics that modules log for the bar, and the time that is left."""
        status = objective_status(pl_module.objective, pl_module.latest_metrics)
        for name, value in self.get_metrics(trainer, pl_module).items():
            if name == "v_num":
                continue
            status.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")

        updates_done = trainer.global_step - self._first
        updates_left = self.total_train_batches - trainer.global_step
        seconds_left = (time.monotonic() - self._began) / max(updates_done, 1) * updates_left
        if 0 < seconds_left < float("inf"):
            minutes, seconds = divmod(round(seconds_left), 60)
            status.append(f"{minutes}:{seconds:02} left")
        return ", ".join(status)


def measured_constraints(objective: Objective, latest: dict[str, float]) -> Iterator[MeasuredConstraint]:
    """The constraints that the last update measured, with the bounds in force, in the objective's order."""
    for name, constraint in objective.constraints.items():
        value = latest.get(constraint.bound.tag(name))
        if value is not None:
            threshold = latest.get(f"threshold/{name}", constraint.bound.threshold)
            bound = replace(constraint.bound, threshold=threshold)
            yield replace(MeasuredConstraint.declared(name, constraint), bound=bound, value=value)


def excess(measured: MeasuredConstraint) -> float:
    """How far a value lies beyond its bound, in units of the bound; minus infinity without a bound."""
    bound = measured.bound
    if bound.threshold is None or measured.value is None:
        return float("-inf")
    return (bound.violation(measured.value) - bound.target) / unit_of(bound)


def furthest_constraints(objective: Objective, latest: dict[str, float]) -> list[MeasuredConstraint]:
    """The measured constraints in the objective's order; of many, the `ROWS` furthest beyond their thresholds."""
    measured = list(measured_constraints(objective, latest))
    largest = sorted(map(excess, measured), reverse=True)[:ROWS]
    return [constraint for constraint in measured if excess(constraint) >= largest[-1]]


def objective_status(objective: Objective, latest: dict[str, float]) -> list[str]:
    """``2/3 met``, the constraint furthest beyond its threshold, the reward, and what stalled constraints hold."""
    status = []
    enforced = [measured for measured in measured_constraints(objective, latest) if measured.enforced]
    if enforced:
        met = sum(measured.met for measured in enforced)
        status.append(f"{met}/{len(enforced)} met")
        worst = max(enforced, key=excess)
        place = "closest" if worst.met else "worst"
        status.append(f"{place} {short_name(worst.name)} {worst.compared}")
    if "reward/mean" in latest:
        status.append(f"reward {latest['reward/mean']:.3g}")
    for name in objective.constrained:
        if f"held/{name}" in latest:
            status.append(f"{short_name(name)} held at {latest[f'held/{name}']:.2g}")
    return status


def progress_table(module: RolloutModule) -> Table:
    """The last update's rates with thresholds, intervals and multipliers."""
    latest = module.latest_metrics
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for measured in furthest_constraints(module.objective, latest):
        name = measured.name
        rate = module.latest_rates.get(name)
        if rate is not None:
            bound = measured.bound
            measured = measured.at(measured.value, bound.interval(rate), bound.word(rate))
        cells = [name, measured.condition, measured.value_text, measured.interval_text, measured.side]
        cells.append(weight_text(latest, name))
        table.add_row(*map(Text, cells))
    if "reward/mean" in latest:
        table.add_row("reward", "", f"{latest['reward/mean']:.4g}", "", "", weight_text(latest, "reward"))
    return table


def weight_text(latest: dict[str, float], name: str) -> str:
    """``λ 0.4``, or ``λ 0.4, held at 0.31`` of a stalled constraint; empty for a monitored constraint."""
    if f"multiplier/{name}" not in latest:
        return ""
    held = f", held at {latest[f'held/{name}']:.2g}" if f"held/{name}" in latest else ""
    return f"λ {latest[f'multiplier/{name}']:.2g}{held}"


def short_name(name: str) -> str:
    """The name in at most `LONGEST` characters."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
