"""Sampled answers on the screen, in the log and on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.callbacks.answers import Record, answer_file, answer_records, append_records
from lightning_cgrpo.callbacks.log_writers import run_folder, writers
from lightning_cgrpo.core.errors import UserError, expect, printable
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.objective.objective import Objective

FILE = "samples.jsonl"
ON_SCREEN = 300
"""Characters."""
LINES = 12
"""Lines of a text, before wrapping."""
IN_CELL = 40
"""Characters of a value of `log_extra`."""
IN_TENSORBOARD = 10_000
"""Characters."""


class SampleAnswers(Callback):
    r"""Shows the best and the worst answer to the first prompt, by advantage, with the objective's signals.

    The screen and the log (``samples``) show texts shortened, with escapes for unprintable characters (``\x1b``).

    Args:
        write: append all answers of the update to ``samples.jsonl`` in the run's folder, a line of JSON per answer:
            ``step`` (the update) and the fields of `answer_records`. Several processes append their ranks to the name.

    Raises:
        UserError: answers aren't texts.
    """

    changes_learning = False

    def __init__(self, every_n_updates: int = 50, write: bool = False) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        self.every_n_updates = every_n_updates
        self.write = write
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
        groups = list(answer_records(outputs, pl_module.policy, None if self.write else 1))
        if self.write:
            records = chain.from_iterable(groups)
            append_records(self._file, ({"step": update, **record} for record in records))
        if not groups:  # no prompts on this process
            return
        names = _signal_names(pl_module.objective)
        shown = best_and_worst(groups[0])
        for writer in writers(trainer):
            writer.add_text("samples", _answers_in_markdown(shown, names), update)
        if trainer.is_global_zero:
            print_table(_answers_table(shown, names, f"Answers of update {update}", get_console().encoding))


def _signal_names(objective: Objective) -> dict[str, str]:
    """The name that each signal of the objective is shown by.

    An indicator has the constraint's name, as in all other tables. A number has the name of its unit, such as tokens.
    """
    names = {reward: reward for reward in objective.rewards}
    for name, constraint in objective.constraints.items():
        signal = constraint.signal or name
        is_number = constraint.from_number or constraint.bound.of_mean
        names.setdefault(signal, signal if is_number else name)
    return names


def best_and_worst(group: Sequence[Record]) -> dict[str, Record]:
    """The answers with the highest and the lowest advantage, or one of equal answers."""
    best = max(group, key=lambda record: record["advantage"])
    worst = min(group, key=lambda record: record["advantage"])
    if best["answer"] == worst["answer"]:
        return {"answer": best}
    return {"best answer": best, "worst answer": worst}


def _answers_table(shown: Mapping[str, Record], names: Mapping[str, str], title: str, encoding: str) -> Table:
    def to_text(shortened: str) -> Text:
        # Not strings, in which rich would look for markup.
        return Text(shortened.encode(encoding, "backslashreplace").decode(encoding))

    texts = {"prompt": _first_prompt(shown)}
    for head, record in shown.items():
        texts[head] = record["answer"]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, expand=True)
    for head in texts:
        table.add_column(head, ratio=1, overflow="fold")
    table.add_row(*(to_text(_excerpt(text, ON_SCREEN, LINES)) for text in texts.values()))
    table.add_row("", *(to_text(_values_in_words(record, names)) for record in shown.values()), style="dim")
    return table


def _answers_in_markdown(shown: Mapping[str, Record], names: Mapping[str, str]) -> str:
    sections = [f"**Prompt**\n\n{_as_code_block(_first_prompt(shown))}\n"]
    for head, record in shown.items():
        values = _values_in_words(record, names)
        sections.append(f"**{head.capitalize()}** ({values})\n\n{_as_code_block(record['answer'])}\n")
    return "\n".join(sections)


def _first_prompt(shown: Mapping[str, Record]) -> str:
    record = next(iter(shown.values()))
    return str(record["prompt"])


def _values_in_words(record: Record, names: Mapping[str, str]) -> str:
    """The signals by the names that they are shown by, and columns of `log_extra`, as a short text."""
    texts = {}
    for signal, name in names.items():
        if signal in record["signals"]:
            value = record["signals"][signal]
            texts[name] = "n/a" if value is None else f"{value:.3g}"
    for name, value in record.get("extra", {}).items():
        texts[name] = _excerpt(str(value), IN_CELL, 1)
    return ", ".join(f"{printable(name)} {text}" for name, text in texts.items())


def _as_code_block(text: str) -> str:
    """Quote as a code block, so that tags and line breaks show."""
    lines = _excerpt(text, IN_TENSORBOARD, IN_TENSORBOARD).split("\n")
    return "\n".join(f"    {line}" for line in lines)


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
