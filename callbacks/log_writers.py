"""The folder of a run, and figures and texts in TensorBoard, in Weights & Biases, or as files beside a CSV log."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LogWriter(Protocol):
    """Writes under the same tags as a logger's metrics; TensorBoard's own writer is one."""

    def add_figure(self, tag: str, figure: Figure, update: int) -> None: ...

    def add_text(self, tag: str, text: str, update: int) -> None:
        """Write Markdown."""


def run_folder(trainer: Trainer) -> Path:
    """The first logger's folder, else the trainer's `default_root_dir`. Collective."""
    folder = trainer.default_root_dir
    if trainer.loggers:
        # Not `log_dir`, which all runs share under W&B's logger; Lightning's ModelCheckpoint does the same.
        first = trainer.loggers[0]
        version = first.version if isinstance(first.version, str) else f"version_{first.version}"
        folder = str(Path(first.save_dir or trainer.default_root_dir) / str(first.name) / version)
    shared: str = trainer.strategy.broadcast(folder)
    return Path(shared)


def writers(trainer: Trainer) -> Iterator[LogWriter]:
    """A writer for each logger that can show more than metrics, on the first process."""
    if not trainer.is_global_zero:
        return
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            yield logger.experiment
        elif isinstance(logger, WandbLogger):
            yield _Wandb(logger.experiment)
        elif isinstance(logger, CSVLogger):
            yield _Files(Path(logger.log_dir))


@dataclass
class _Wandb:
    run: Any

    def add_figure(self, tag: str, figure: Figure, update: int) -> None:
        from wandb import Image

        self._log(tag, Image(figure), update)

    def add_text(self, tag: str, text: str, update: int) -> None:
        from wandb import Html

        # Answers are untrusted text.
        encodable = text.encode("utf-8", "backslashreplace").decode()
        self._log(tag, Html(f"<pre>{html.escape(encodable)}</pre>"), update)

    def _log(self, tag: str, value: Any, update: int) -> None:
        # Lightning's name of the horizontal axis.
        self.run.log({tag: value, "trainer/global_step": update})


@dataclass
class _Files:
    """Writes ``<tag>/<update>.png`` and ``<tag>/<update>.md``."""

    folder: Path

    def add_figure(self, tag: str, figure: Figure, update: int) -> None:
        figure.savefig(self._path(tag, update, "png"))

    def add_text(self, tag: str, text: str, update: int) -> None:
        self._path(tag, update, "md").write_text(text, encoding="utf-8", errors="backslashreplace")

    def _path(self, tag: str, update: int, suffix: str) -> Path:
        path = self.folder / tag / f"{update:05d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
