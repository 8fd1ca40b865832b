"""Sampled answers on the screen, in the log and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.callbacks.log_writers import writers
from lightning_cgrpo.callbacks.shown_answers import Answer, answers_of
from lightning_cgrpo.errors import UserError, expect, installing
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput
from lightning_cgrpo.output import print_table, unfinished

FOLDER = "completions"
COLUMNS = ("step", "prompt", "completion", "advantage")
"""Columns of a Parquet file that no signal may be named after."""
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

    With `parquet`, each process writes all answers to ``completions/completions_<update>.parquet`` in the run's folder.
    Columns: ``step`` (the update), ``prompt``, ``completion``, each signal (null if not applicable), ``advantage``,
    ``tokens``, ``truncated``, those of `log_extra`. Signals named ``tokens`` or ``truncated`` replace these columns.

    Args:
        answers: number per prompt.
        screen: print a table.
        parquet: write files (the extra ``data``).

    Raises:
        UserError: `parquet` without pyarrow or with a signal named after a column; or answers aren't texts.
    """

    changes_learning = False

    def __init__(
        self,
        every_n_updates: int = 50,
        prompts: int = 1,
        answers: int = 4,
        screen: bool = True,
        parquet: bool = False,
    ) -> None:
        for name, value in (("every_n_updates", every_n_updates), ("prompts", prompts), ("answers", answers)):
            expect(value >= 1, name, "at least 1", value)
        self.every_n_updates, self.prompts, self.answers = every_n_updates, prompts, answers
        self.screen, self.parquet = screen, parquet
        self.folder: Path | None = None

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        if not self.parquet or stage != "fit":
            return
        _parquet()
        taken = [name for name in COLUMNS if name in pl_module.task.signals]
        if taken:
            raise UserError(
                f"Expected no signal to be called '{taken[0]}', which is another column of the Parquet files, but got "
                "one; rename the signal, or set parquet: false of SampleAnswers."
            )

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        # Collective, and the same on every process.
        self.folder = Path(trainer.log_dir or trainer.default_root_dir) / FOLDER

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        update = trainer.global_step - 1
        if update % self.every_n_updates:
            return
        groups = list(answers_of(outputs, None if self.parquet else self.prompts))
        if self.parquet and groups:
            rank = f".{trainer.global_rank}" if trainer.world_size > 1 else ""
            assert self.folder is not None
            write_parquet([answer for group in groups for answer in group], update, self.folder, rank)
        shown = [group[: self.answers] for group in groups[: self.prompts]]
        if not shown:
            return
        for writer in writers(trainer):
            writer.text("samples", _markdown(shown), update)
        if self.screen and trainer.is_global_zero:
            print_table(_table(shown, f"Answers of update {update}", Console().encoding))


def write_parquet(answers: Sequence[Answer], update: int, folder: Path, suffix: str = "") -> Path:
    """Write answers with the same signals to a new file, completely or not at all."""
    import pyarrow

    text, number = pyarrow.string(), pyarrow.float64()
    signals = dict.fromkeys(answers[0].signals, number)
    columns = {"step": pyarrow.int64(), "prompt": text, "completion": text} | signals | {"advantage": number}
    columns |= {"tokens": pyarrow.int64(), "truncated": pyarrow.bool_()} | signals
    extra = [name for name in answers[0].extra if name not in columns]
    columns |= dict.fromkeys(extra, text)
    rows = [
        {
            "step": update,
            "prompt": _encodable(answer.prompt, "utf-8"),
            "completion": _encodable(answer.text, "utf-8"),
            "advantage": answer.advantage,
            "tokens": answer.tokens,
            "truncated": answer.truncated,
            **answer.signals,
            **{name: _encodable(answer.extra[name], "utf-8") for name in extra},
        }
        for answer in answers
    ]
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema(list(columns.items())))
    folder.mkdir(parents=True, exist_ok=True)
    path = _unused(folder, f"completions_{update:05d}", f"{suffix}.parquet")
    with unfinished(path) as file:
        _parquet().write_table(table, file)
    return path


def _unused(folder: Path, stem: str, suffix: str) -> Path:
    path, number = folder / f"{stem}{suffix}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    if number > 1:
        rank_zero_warn(f"Answers of this update were written before, to {folder}; they stay, beside {path.name}.")
    return path


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            "Expected the library `pyarrow` to be installed, to write answers for SampleAnswers, but got none: "
            f"{installing('data')}, or set parquet: false."
        ) from error
    return parquet


def _encodable(text: str, encoding: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _table(groups: Sequence[Sequence[Answer]], title: str, encoding: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    table.add_column("completion", ratio=3, overflow="fold")
    table.add_column("signals", no_wrap=True)
    for group in groups:
        for number, answer in enumerate(group):
            prompt, text = ("" if number else answer.prompt), answer.text
            values = _values(answer)
            width = max(map(len, values))
            lines = "\n".join(f"{name:{width}} {value:>6}" for name, value in values.items())
            cells = (_excerpt(prompt, ON_SCREEN, LINES), _excerpt(text, ON_SCREEN, LINES), lines)
            # Not strings, in which rich would look for markup.
            table.add_row(*(Text(_encodable(cell, encoding)) for cell in cells))
    return table


def _markdown(groups: Sequence[Sequence[Answer]]) -> str:
    parts = []
    for group in groups:
        parts.append(f"**Prompt**\n\n{_quoted(group[0].prompt)}\n")
        for number, answer in enumerate(group, 1):
            values = ", ".join(f"{name} {value}" for name, value in _values(answer).items())
            parts.append(f"**Answer {number}** ({values})\n")
            parts.append(_quoted(answer.text) + "\n")
    return "\n".join(parts)


def _values(answer: Answer) -> dict[str, str]:
    extra = {_printable(name): _excerpt(value, IN_CELL, 1) for name, value in answer.extra.items()}
    shown = {name: "n/a" if value is None else f"{value:.3g}" for name, value in answer.signals.items()}
    return (
        {_printable(name): value for name, value in shown.items()} | {"advantage": f"{answer.advantage:+.2f}"} | extra
    )


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
    return "\n".join(map(_printable, rows))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
