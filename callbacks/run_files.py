"""Files written when a run begins."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_cgrpo.callbacks.log_writers import run_folder
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.settings.configuration import Environment

HEADER = b"# lightning"
"""First bytes of configurations that Lightning's parser saves."""

HYPERPARAMETERS = {"hyper_parameters": "model.init_args", "datamodule_hyper_parameters": "data.init_args"}
"""Lightning's keys of a checkpoint, and the sections of the configuration that they repeat."""


class RunFiles(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder once training begins; evaluations and failed starts leave none."""

    def __init__(self, *arguments: Any, environment: Environment, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.environment = environment

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        for key, section in HYPERPARAMETERS.items():
            if key in checkpoint:
                checkpoint[key] = self.environment.hidden(checkpoint[key], section)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        folder = run_folder(trainer)
        config = folder / self.config_filename
        if not config.exists():
            return
        if not trainer.loggers and not config.read_bytes().startswith(HEADER):
            raise UserError(
                f"Expected no '{config}' of another origin, because a run without a logger writes its configuration "
                "there, but got one, try another name, or --trainer.default_root_dir=DIR."
            )
        resumed_folder = Path(self.config.get("ckpt_path") or "").parent.parent
        if trainer.loggers and resumed_folder.resolve() != folder.resolve():
            raise UserError(
                f"Expected a folder without a run, but '{folder}' holds one, try no trainer.logger.version, or another."
            )

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self._remove_empty(trainer)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self._remove_empty(trainer)

    def _remove_empty(self, trainer: Trainer) -> None:
        if self.already_saved or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and _only_of_this_process(Path(logger.log_dir)):
                logger.finalize("failed")
                shutil.rmtree(logger.log_dir)
                with contextlib.suppress(OSError):  # Other versions or runs are in it.
                    Path(logger.log_dir).parent.rmdir()
                    Path(logger.save_dir).rmdir()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        folder = run_folder(trainer)
        self.already_saved = True
        if not trainer.is_global_zero:
            return
        weights = list(pl_module.policy.parameters())
        parameters = sum(weight.numel() for weight in weights)
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        print(f"Policy: {parameters:,} parameters, {trained:,} trained.")
        print(f"Logs and checkpoints: {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        # The parser has validated this configuration, and doing so again takes most of the time of saving.
        text = self.parser.dump(self.config, skip_unset=False, skip_validation=True)
        write_whole(folder / self.config_filename, self.environment.hidden_yaml(text))


def _only_of_this_process(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    for file in folder.iterdir():
        is_own_event_file = file.name.startswith("events.out.tfevents.") and f".{os.getpid()}." in file.name
        if file.name != "hparams.yaml" and not is_own_event_file:
            return False
    return True
