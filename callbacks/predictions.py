"""Answers on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.callbacks.run_folder import run_folder
from lightning_cgrpo.callbacks.shown_answers import prompt_text, signal_values
from lightning_cgrpo.modules.rollout_module import RolloutModule, ScoredPrompts
from lightning_cgrpo.policies.network_policy import NetworkPolicy
from lightning_cgrpo.rollout import PromptGroups


class WritePredictions(Callback):
    """Writes a line of JSON per answer in `predict`.

    A line has ``index`` (of the prompt in its data set), ``prompt`` (the text, or a chat's last message; only for text
    prompts), ``seed`` (only for worlds), ``answer`` (the text, or the actions as the environment gets them) and
    ``signals`` by name, null if not applicable.

    Args:
        path: by default ``predictions.jsonl`` in the run's folder; several processes append their ranks.
    """

    changes_learning = False

    def __init__(self, path: str | None = None) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self._file = Path()
        self.written = 0

    def on_predict_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        path = run_folder(trainer) / "predictions.jsonl" if self.path is None else self.path
        several = trainer.world_size > 1
        self._file = path.with_name(f"{path.stem}.{trainer.global_rank}{path.suffix}") if several else path
        self._file.parent.mkdir(parents=True, exist_ok=True)
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
        rollouts = outputs["rollouts"]
        signals = {name: signal_values(signal) for name, signal in outputs["signals"].items()}
        columns, texts = outputs["prompts"].columns, rollouts.info.get("text")
        actions = rollouts.actions
        if isinstance(pl_module.policy, NetworkPolicy):
            actions = pl_module.policy.distribution.applied(actions)
        # JSON's escapes replace halves of surrogate pairs, which UTF-8 can't encode.
        with self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for row, number in enumerate(outputs["prompts"].index.tolist()):
                asked: dict[str, Any] = {"prompt": prompt_text(columns["prompt"][row])} if "prompt" in columns else {}
                if "seed" in columns:
                    asked["seed"] = int(columns["seed"][row])
                for column in range(rollouts.mask.shape[1]):
                    mask = rollouts.mask[row, column]
                    answer = texts[row][column] if texts else actions[row, column][mask].tolist()
                    values = {name: rows[row][column] for name, rows in signals.items()}
                    record = {"index": number, **asked, "answer": answer, "signals": values}
                    self.written += 1
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
