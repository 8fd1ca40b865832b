"""The objective as a table on the screen: before training, to choose thresholds, and after a test."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.table import Table

from lightning_cgrpo.measurement import RunningSums, behavior_metrics
from lightning_cgrpo.objective import Objective
from lightning_cgrpo.randomness import Stream


def objective_table(objective: Objective, metrics: Mapping[str, float], title: str) -> Table:
    """Rewards and rates against their thresholds.

    Args:
        metrics: by tag, as of `behavior_metrics`.
    """
    table = Table(title=title, title_justify="left")
    for column, justify in (("behavior", "left"), ("measured", "right"), ("threshold", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    names = ", ".join(objective.rewards)
    table.add_row(f"reward ({names})", _number(metrics.get("reward/mean")), "", "")
    for name, constraint in objective.constraints.items():
        rate = metrics.get(f"rate/{name}")
        bound = (
            "" if constraint.bound is None else f"{'<=' if constraint.at_least is None else '>='} {constraint.bound:g}"
        )
        verdict = "monitored" if constraint.role == "monitor" else ""
        if rate is not None and constraint.bound is not None:
            met = "met" if constraint.met_by(rate) else "[bold red]missed[/]"
            verdict = f"{verdict}, {met}" if verdict else met
        table.add_row(f"rate of {name}", _number(rate), bound, verdict)
    table.add_row("steps per answer", _number(metrics.get("rollout/length")), "", "")
    return table


def _number(value: float | None) -> str:
    return "never observed" if value is None else f"{value:.4g}"


class InitialRates(Callback):
    """Measures reward and rates of the policy as it is, before the first update: what thresholds are realistic?

    Shown on the screen, and logged under ``initial/*``. Draws randomness of its own, so the run is the same without.

    Args:
        batches: training batches to measure on.
    """

    def __init__(self, batches: int = 1) -> None:
        if batches < 1:
            raise ValueError(f"Expected argument `batches` to be at least 1, but got {batches}.")
        self.batches = batches

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.global_step > 0 or trainer.train_dataloader is None:
            return
        sums = RunningSums()
        # Lightning sets the precision up for its own steps only.
        with trainer.precision_plugin.forward_context():
            for number, prompts in enumerate(islice(trainer.train_dataloader, self.batches)):
                prompts = prompts.to(pl_module.device)
                pl_module.measure(prompts, pl_module.group_size, Stream.INITIAL_RATES, number, sums)
        total = sums.total()
        metrics = behavior_metrics(pl_module.objective, total)
        for logger in trainer.loggers:
            logger.log_metrics({f"initial/{tag}": value for tag, value in metrics.items()}, step=0)
        if trainer.is_global_zero:
            title = f"Before training, {total['answers']:.0f} answers"
            Console().print(objective_table(pl_module.objective, metrics, title))


class EvaluationTable(Callback):
    """Shows rates against thresholds after validation (of `validate`) and test."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._show(trainer, pl_module, "test")

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "validate":
            self._show(trainer, pl_module, "val")

    def _show(self, trainer: Trainer, pl_module: Any, split: str) -> None:
        if not trainer.is_global_zero:
            return
        measured = {
            tag.removeprefix(f"{split}/"): float(value)
            for tag, value in trainer.callback_metrics.items()
            if tag.startswith(f"{split}/")
        }
        title = f"{'Test' if split == 'test' else 'Validation'}, {pl_module.evaluated_answers} answers"
        Console().print(objective_table(pl_module.objective, measured, title))
