"""Answers on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.callbacks.answers import signal_values


class WritePredictions(Callback):
    """Writes a line of JSON per answer in `predict`: prompt index, answer (text, or actions), and signals.

    Args:
        path: of the file; with several processes each appends its rank to the name.
    """

    def __init__(self, path: str = "predictions.jsonl") -> None:
        self.path = Path(path)
        self.written = 0

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.ckpt_path is None:
            rank_zero_warn("The policy answers as it is before training; see --ckpt_path.")
        path = self._path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self.written = 0

    def on_predict_end(self, trainer: Trainer, pl_module: Any) -> None:
        print(f"Wrote {self.written} answers to {self._path(trainer)}.")

    def _path(self, trainer: Trainer) -> Path:
        if trainer.world_size == 1:
            return self.path
        return self.path.with_name(f"{self.path.stem}.{trainer.global_rank}{self.path.suffix}")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        rollouts = outputs["rollouts"]
        signals = {name: signal_values(signal) for name, signal in outputs["signals"].items()}
        texts = rollouts.info.get("text")
        # Half of a surrogate pair, which UTF-8 can't hold, becomes JSON's own escape of it.
        with self._path(trainer).open("a", encoding="utf-8", errors="backslashreplace") as file:
            for row, prompt in enumerate(outputs["prompts"].index.tolist()):
                for column in range(rollouts.mask.shape[1]):
                    mask = rollouts.mask[row, column]
                    answer = texts[row][column] if texts else rollouts.actions[row, column][mask].tolist()
                    values = {name: rows[row][column] for name, rows in signals.items()}
                    record = {"prompt": prompt, "answer": answer, "signals": values}
                    self.written += 1
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
