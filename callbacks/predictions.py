"""Answers on disk."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.callbacks.answers import answer_file, answer_records, append_records
from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.modules.rollout_module import RolloutModule, ScoredPrompts


class WritePredictions(Callback):
    """Writes a line of JSON per answer in `predict`: the fields of `answer_records`.

    Args:
        path: by default ``predictions.jsonl`` in the run's folder; several processes append their ranks.
    """

    changes_learning = False

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self._file = Path()
        self.written = 0

    def on_predict_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        self._file = answer_file(self.path or run_folder(trainer) / "predictions.jsonl", trainer)
        self._file.write_text("")
        self.written = 0

    def on_predict_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        print(f"Wrote {self.written} answers to {self._file}.")

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: RolloutModule,
        outputs: ScoredPrompts,
        batch: PromptGroups,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        records = list(chain.from_iterable(answer_records(outputs, pl_module.policy)))
        append_records(self._file, records)
        self.written += len(records)
