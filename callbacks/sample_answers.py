"""Sampled answers on the screen, in the log and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.callbacks.answers import Record, answer_file, answer_records, append_records
from lightning_cgrpo.callbacks.log_writers import writers
from lightning_cgrpo.callbacks.run_folder import run_folder
from lightning_cgrpo.errors import UserError, expect, printable
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.output import print_table

FILE = "samples.jsonl"
ON_SCREEN = 400
"""Characters."""
LINES = 12
"""Lines of a text, before wrapping."""
IN_CELL = 40
"""Characters of a value of `log_extra`."""
IN_TENSORBOARD = 10_000
"""Characters."""


class SampleAnswers(Callback):
    r"""Shows sampled answers of an update with prompts, signals and advantages.

    The screen and the log (``samples``) show a few answers, shortened, with escapes for unprintable
    characters (``\x1b``).

    Args:
        answers: number per prompt.
        write: append all answers of the update to ``samples.jsonl`` in the run's folder, a line of JSON per answer:
            ``step`` (the update) and the fields of `answer_records`. Several processes append their ranks to the name.

    Raises:
        UserError: answers aren't texts.
    """

    changes_learning = False

    def __init__(self, every_n_updates: int = 50, prompts: int = 1, answers: int = 4, write: bool = False) -> None:
        for name, value in (("every_n_updates", every_n_updates), ("prompts", prompts), ("answers", answers)):
            expect(value >= 1, name, "at least 1", value)
        self.every_n_updates, self.prompts, self.answers, self.write = every_n_updates, prompts, answers, write
        self._file = Path()

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        if self.write:
            self._file = answer_file(run_folder(trainer) / FILE, trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        update = trainer.global_step - 1
        if update % self.every_n_updates:
            return
        if "text" not in outputs["rollouts"].info or "prompt" not in outputs["prompts"].columns:
            raise UserError("Expected answers in text for SampleAnswers, but got none; use Pictures, or remove it.")
        groups = list(answer_records(outputs, pl_module.policy, None if self.write else self.prompts))
        if self.write:
            append_records(self._file, ({"step": update, **record} for record in chain.from_iterable(groups)))
        shown = [group[: self.answers] for group in groups[: self.prompts]]
        if not shown:
            return
        for writer in writers(trainer):
            writer.add_text("samples", _markdown(shown), update)
        if trainer.is_global_zero:
            print_table(_table(shown, f"Answers of update {update}", Console().encoding))


def _table(groups: Sequence[Sequence[Record]], title: str, encoding: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    table.add_column("completion", ratio=3, overflow="fold")
    table.add_column("signals", no_wrap=True)
    for group in groups:
        for number, record in enumerate(group):
            prompt = "" if number else record["prompt"]
            values = _values(record)
            width = max(map(len, values))
            lines = "\n".join(f"{name:{width}} {value:>6}" for name, value in values.items())
            cells = (_excerpt(prompt, ON_SCREEN, LINES), _excerpt(record["answer"], ON_SCREEN, LINES), lines)
            # Not strings, in which rich would look for markup.
            table.add_row(*(Text(cell.encode(encoding, "backslashreplace").decode(encoding)) for cell in cells))
    return table


def _markdown(groups: Sequence[Sequence[Record]]) -> str:
    parts = []
    for group in groups:
        parts.append(f"**Prompt**\n\n{_quoted(group[0]['prompt'])}\n")
        for number, record in enumerate(group, 1):
            values = ", ".join(f"{name} {value}" for name, value in _values(record).items())
            parts.append(f"**Answer {number}** ({values})\n")
            parts.append(_quoted(record["answer"]) + "\n")
    return "\n".join(parts)


def _values(record: Record) -> dict[str, str]:
    """Signals, the advantage and columns of `log_extra`, as short texts."""
    values = {name: "n/a" if value is None else f"{value:.3g}" for name, value in record["signals"].items()}
    values["advantage"] = f"{record['advantage']:+.2f}"
    extra = {name: _excerpt(str(value), IN_CELL, 1) for name, value in record.get("extra", {}).items()}
    return {printable(name): value for name, value in (values | extra).items()}


def _quoted(text: str) -> str:
    """Quote as a code block, so that tags and line breaks show."""
    return "\n".join(f"    {line}" for line in _excerpt(text, IN_TENSORBOARD, IN_TENSORBOARD).split("\n"))


def _excerpt(text: str, characters: int, lines: int) -> str:
    """Shorten to a printable beginning and end, because the answer is at the end."""
    if len(text) > characters:
        head = characters * 2 // 3
        text = f"{text[:head]} [...] {text[head - characters :]}"
    rows = text.split("\n")
    if len(rows) > lines:
        head = lines * 2 // 3
        rows = [*rows[:head], "[...]", *rows[head - lines :]]
    return "\n".join(map(printable, rows))
