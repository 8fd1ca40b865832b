"""What TensorBoard shows beside the scalars: charts laid out by constraint, sample answers, pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.objective import Objective
from lightning_cgrpo.tasks import Renderer


def writers(trainer: Trainer) -> Iterator[SummaryWriter]:
    """The TensorBoard writers of a run, on the process that writes."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                yield logger.experiment


def custom_scalars(objective: Objective) -> dict[str, dict[str, list[Any]]]:
    """A layout for TensorBoard's *Custom Scalars*: each rate with its threshold, all multipliers in one chart."""
    charts: dict[str, list[Any]] = {"reward": ["Multiline", ["^reward/mean$"]]}
    for name in objective.constraints:
        tag = re.escape(name)
        charts[f"rate of {name}"] = ["Multiline", [f"^rate/{tag}$", f"^threshold/{tag}$"]]
    charts["multipliers"] = ["Multiline", ["^multiplier/.*"]]
    charts["effective weights"] = ["Multiline", ["^effective_weight/.*"]]
    charts["informative groups"] = ["Multiline", ["^groups/informative/.*"]]
    return {"objective": charts}


class TensorBoardLayout(Callback):
    """Writes `custom_scalars` when training starts."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        for writer in writers(trainer):
            writer.add_custom_scalars(custom_scalars(pl_module.objective))


class EffectiveWeights(Callback):
    """Writes how the effective weights are distributed over the groups in which a component varies.

    Histograms ``effective_weights/<component>``, in the updates that are logged, of the first process's groups. Their
    means are the scalars ``effective_weight/<component>``, but under scalarized rewards a weight is near 0 in some
    groups and near 1 in others, and its mean is that of no group.
    """

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        for writer in writers(trainer):
            for name, values in outputs["effective_weights"].items():
                if len(values):
                    writer.add_histogram(f"effective_weights/{name}", values, trainer.global_step - 1)


class SampleAnswers(Callback):
    """Writes sampled completions with their signals as text.

    Args:
        every_n_updates: how often.
        prompts: of how many prompts.
        answers: how many answers of each.
    """

    def __init__(self, every_n_updates: int = 50, prompts: int = 1, answers: int = 4) -> None:
        for name, value in (("every_n_updates", every_n_updates), ("prompts", prompts), ("answers", answers)):
            if value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        self.every_n_updates, self.prompts, self.answers = every_n_updates, prompts, answers

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        update = trainer.global_step - 1
        if update % self.every_n_updates == 0:
            for writer in writers(trainer):
                writer.add_text("samples", self._markdown(outputs), update)

    def _markdown(self, outputs: Any) -> str:
        if "text" not in outputs["rollouts"].info:
            raise UserError("Expected answers in text for SampleAnswers, but got none; use Pictures, or remove it.")
        texts = outputs["rollouts"].info["text"]
        prompts = outputs["prompts"].columns["prompt"]
        signals = outputs["signals"]
        parts = []
        for row in range(min(self.prompts, len(texts))):
            prompt = prompts[row] if isinstance(prompts[row], str) else prompts[row][-1]["content"]
            parts.append(f"**Prompt**\n\n{_quoted(prompt)}\n")
            for column in range(min(self.answers, len(texts[row]))):
                values = ", ".join(f"{name} {_value(signal, row, column)}" for name, signal in signals.items())
                advantage = float(outputs["advantages"][row, column].mean())
                parts.append(f"**Answer {column + 1}** ({values}; advantage {advantage:+.2f})\n")
                parts.append(_quoted(texts[row][column]) + "\n")
        return "\n".join(parts)


class Pictures(Callback):
    """Draws answers to the first prompts of a batch.

    Args:
        renderer: draws a prompt with its answers.
        every_n_updates: how often.
        prompts: how many prompts.
    """

    def __init__(self, renderer: Renderer, every_n_updates: int = 500, prompts: int = 1) -> None:
        for name, value in (("every_n_updates", every_n_updates), ("prompts", prompts)):
            if value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1, but got {value}.")
        self.renderer, self.every_n_updates, self.prompts = renderer, every_n_updates, prompts

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        update = trainer.global_step - 1
        if update % self.every_n_updates:
            return
        for writer in writers(trainer):
            for row in range(min(self.prompts, len(outputs["prompts"]))):
                figure = self.renderer.render(outputs["prompts"], outputs["rollouts"], outputs["signals"], row)
                writer.add_figure(f"episodes/{row}", figure, update)


def _quoted(text: str) -> str:
    """As a code block, so that tags and line breaks in it are seen as they are."""
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _value(signal: Any, row: int, column: int) -> str:
    if signal.applicable is not None and not bool(signal.applicable[row, column]):
        return "n/a"
    return f"{float(signal.value[row, column]):.3g}"
