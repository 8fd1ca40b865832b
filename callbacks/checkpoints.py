"""The checkpoint callback."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_cgrpo.checkpoints.files import UNFINISHED, is_remote, newest, put, remove, remove_unfinished
from lightning_cgrpo.checkpoints.plugin import CheckpointFiles, unwritten, write_failure
from lightning_cgrpo.checkpoints.termination import Termination
from lightning_cgrpo.core.errors import UserError, did_you_mean, expect
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.user_code import by_signal
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.merit import MERIT, too_few

FOLDER = "checkpoints"
VALIDATION = "val/"


class Checkpoints(ModelCheckpoint):
    """`ModelCheckpoint` whose resumed runs equal uninterrupted runs.

    - ``last.ckpt`` is the end of training, not only a multiple of `every_n_train_steps`.
    - A checkpoint gets its name once completely on the disk, after the loggers' buffers.
    - SIGTERM and Ctrl-C write ``last.ckpt``, also without `save_last`, after the current update or validation batch.
      Then all processes end, the first with status 143 or 130. A second signal ends the run at once; see `termination`.
    - A resumed run repeats a due or interrupted validation.
    - With `monitor`, checkpoints are ranked after the same update's validation. A resumed run knows earlier runs' best
      checkpoints.
    - With `monitor` of validation, such as ``val/merit`` (feasible policies first, then by reward), every validation
      ranks its policy, and no other policy gets its rank. A run without validation keeps the newest checkpoint.
    - ``ckpt_path="last"`` is the newest checkpoint of all versions; see `newest`.

    Args:
        every_n_minutes: with `save_last`, also write ``last.ckpt`` after the update that ends so long after the last
            checkpoint; None for never.
        args: of `ModelCheckpoint`.
        kwargs: of `ModelCheckpoint`.
    """

    changes_learning = False

    _began = 0.0
    _validation_due = False
    _ranked_by = ""
    _unranked = False
    """True while this update's checkpoint waits for its validation."""

    def __init__(self, *args: Any, every_n_minutes: float | None = 10.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        expect(self._train_time_interval is None, "train_time_interval", "left out, try every_n_minutes", "an interval")
        expect(every_n_minutes is None or every_n_minutes >= 0, "every_n_minutes", "at least 0", every_n_minutes)
        self.every_n_minutes, self._written_at = every_n_minutes, 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        with warnings.catch_warnings():
            # Resumed runs may write to the folder of their checkpoint.
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
            super().setup(trainer, pl_module, stage)
        self._began = time.time()
        if isinstance(pl_module, RolloutModule) and self.monitor == f"{VALIDATION}{MERIT}":
            self._ranked_by = repr(pl_module.objective)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = CheckpointFiles()
        if not isinstance(trainer._signal_connector, Termination):
            trainer._signal_connector = Termination(trainer)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        logger = trainer.loggers[0] if trainer.loggers else None
        place = Path(self.dirpath or Path(trainer.default_root_dir, FOLDER))
        folders = [place]
        if self.dirpath is None and logger is not None:
            run = Path(logger.save_dir or trainer.default_root_dir, str(logger.name))
            place, folders = run / "*" / FOLDER, list(run.glob(f"*/{FOLDER}"))
        if (last := newest(folders)) is not None:
            return {str(last)}
        if any(isinstance(other, OnExceptionCheckpoint) for other in trainer.checkpoint_callbacks):
            return set()  # that callback asks without the user's request
        raise UserError(f'Expected a checkpoint {place}/last.ckpt for ckpt_path="last", but found none.')

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "ranked_by": self._ranked_by}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.current_score = state_dict.get("current_score")
        if state_dict.get("ranked_by", self._ranked_by) == self._ranked_by:
            # Lightning forgets the best checkpoints in a new folder, and every version of a run has a new folder.
            super().load_state_dict({**state_dict, "dirpath": self.dirpath})
        elif path := state_dict["best_model_path"]:
            rank_zero_info(f"The objective has changed, so {path}, the best before, is not compared with what follows.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._written_at = time.monotonic()
        _check_one_checkpoint(trainer)
        ranks = self.monitor == f"{VALIDATION}{MERIT}" and any(trainer.num_val_batches)
        if ranks and isinstance(pl_module, RolloutModule):
            note = too_few(pl_module.objective, _validation_prompts(trainer))
            if note is not None:
                rank_zero_info(note)
        if trainer.is_global_zero:
            # Files of killed runs.
            if self.dirpath and not is_remote(self.dirpath):
                remove_unfinished(Path(self.dirpath))
            former = Path(trainer.ckpt_path or "").parent
            if former.name == FOLDER and not is_remote(trainer.ckpt_path):
                # A running process writes files that changed later.
                remove_unfinished(former, before=self._began)
        _termination(trainer).defers = True

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        # Lightning doesn't count the next epoch as begun if a run resumes after an epoch's last update. A further
        # resumption would then fail.
        epochs = trainer.fit_loop.epoch_progress
        for progress in (epochs.total, epochs.current):
            progress.ready = progress.started = progress.processed + 1  # type: ignore[attr-defined]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save; the last checkpoint follows its validation, because Lightning resumes no finished run."""
        self._validation_due = _validation_due(trainer)
        due = self._due(trainer) or (self._validation_due and self._ranks_validations(trainer))
        waits = self._validation_due and _at_end(trainer)
        self._unranked = due and (waits or (self._validation_due and self.monitor is not None))
        # A link points to the checkpoint ranked last.
        last = due and not (self._unranked and self.save_last == "link")
        if not waits:
            stale = self._ranks_validations(trainer) and not self._validation_due
            self._save(trainer, last, ranked=due and not self._unranked and not stale)
            if self._late(trainer):
                self._save_last(trainer)
        self._end_if_asked(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        if _within_training(trainer):
            self._validation_due = True
            # In a resumed run, no update has set `_unranked`.
            self._unranked |= self._ranks_validations(trainer) or (self._due(trainer) and self.monitor is not None)
            # A validation that was interrupted isn't counted twice.
            trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset_on_restart()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        super().on_validation_batch_end(trainer, pl_module, *args)
        if _within_training(trainer):
            self._end_if_asked(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_due = False
        super().on_validation_end(trainer, pl_module)
        if _within_training(trainer):
            self._save(trainer, last=self._unranked, ranked=self._unranked)
            self._unranked = False

    def _ranks_validations(self, trainer: Trainer) -> bool:
        ranks = self.save_top_k != 0 and (self.monitor or "").startswith(VALIDATION)
        return ranks and any(trainer.num_val_batches)

    def _due(self, trainer: Trainer) -> bool:
        """Replaces Lightning's checks, which warn of manual optimization."""
        return self._every_n_train_steps > 0 and trainer.global_step % self._every_n_train_steps == 0

    def _late(self, trainer: Trainer) -> bool:
        if self.every_n_minutes is None or not self.save_last:
            return False
        late = time.monotonic() - self._written_at >= 60 * self.every_n_minutes
        return bool(trainer.strategy.broadcast(late))  # the clocks of processes differ

    def _save(self, trainer: Trainer, last: bool, ranked: bool) -> None:
        candidates = self._monitor_candidates(trainer) if last or ranked else {}
        if ranked:
            self._save_topk_checkpoint(trainer, candidates)
        if last:
            self._save_last_checkpoint(trainer, candidates)
        # Not after training, because Lightning has then closed the epoch, and a longer run would count one too many.
        if self.save_last and _at_end(trainer):
            self._save_last(trainer)

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        if self.monitor == f"{VALIDATION}{MERIT}" and not any(trainer.num_val_batches):
            if self.save_top_k:
                self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        elif self.monitor is None or self.monitor in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)
        elif self._never_comes(self.monitor, trainer, monitor_candidates):
            hint = (
                did_you_mean(self.monitor, monitor_candidates)
                or f" Try one of {', '.join(sorted(monitor_candidates))}."
            )
            raise UserError(f"Expected Checkpoints to monitor a metric of this run, but got '{self.monitor}'.{hint}")

    @staticmethod
    def _never_comes(monitor: str, trainer: Trainer, metrics: Mapping[str, Tensor]) -> bool:
        """False for a metric that may come: of the first validation, or of a constraint without opportunity so far."""
        module: Any = trainer.lightning_module
        of_validation = monitor.startswith(VALIDATION)
        begun = any(name.startswith(VALIDATION) for name in metrics) or not of_validation
        return begun and monitor.rpartition("/")[2] not in module.objective.constraints

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Without Lightning's method, which would write a second file. The run may have ended early.
        if self.save_last and not _at_end(trainer):
            self._save_last(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._validation_due:
            _mark_validation_due(checkpoint["loops"]["fit_loop"], began=trainer.validating)

    def _end_if_asked(self, trainer: Trainer) -> None:
        # All processes end together, because saving needs all processes.
        number = _termination(trainer).agreed()
        if number is None or _at_end(trainer):
            return
        self._save_last(trainer)
        rank_zero_info(f"The run ends after update {trainer.global_step}. Resume it with --ckpt_path=last.")
        trainer.strategy.barrier()
        # Other processes report success, because Lightning kills the first process after another process's error.
        raise by_signal(SystemExit(128 + number if trainer.is_global_zero else 0))

    def _save_last(self, trainer: Trainer) -> None:
        path = f"{self.dirpath}/{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}"
        # With `save_last`, last.ckpt is written or linked with every other checkpoint.
        written = self._last_global_step_saved == trainer.global_step and (
            self.save_last or self._last_checkpoint_saved == path
        )
        if self.dirpath and not written and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._save_checkpoint(trainer, path)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        self._written_at = time.monotonic()
        for logger in trainer.loggers:
            logger.save()
        if is_remote(filepath):
            super()._save_checkpoint(trainer, filepath)
            return
        # A sharded checkpoint, a directory with a file per process, also gets its name last.
        target = Path(filepath)
        unfinished = target.with_name(f"{target.stem}{UNFINISHED}")
        try:
            trainer.save_checkpoint(unfinished, self.save_weights_only)
        except BaseException as error:  # torch's error for sharded checkpoints is no Exception
            cause = write_failure(error, unfinished)
            if cause is None:
                raise
            if trainer.is_global_zero:
                remove(unfinished)
            raise unwritten(target, cause) from error
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            put(unfinished, target)
        trainer.strategy.barrier()
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(self)


def _check_one_checkpoint(trainer: Trainer) -> None:
    """Refuse to resume from different checkpoints in different processes. Collective."""
    first = trainer.strategy.broadcast(trainer.ckpt_path)
    if str(first) != str(trainer.ckpt_path):
        raise UserError(
            f"Expected all processes to resume from one checkpoint, but got '{trainer.ckpt_path}' in process "
            f"{trainer.global_rank} and '{first}' in the first, try a folder that all nodes share."
        )


def _termination(trainer: Trainer) -> Termination:
    connector = trainer._signal_connector
    assert isinstance(connector, Termination)
    return connector


def _at_end(trainer: Trainer) -> bool:
    return trainer.global_step == trainer.estimated_stepping_batches


def _validation_prompts(trainer: Trainer) -> int:
    loaders = trainer.val_dataloaders
    prompts = [one for one in (loaders if isinstance(loaders, list) else [loaders]) if isinstance(one, PromptLoader)]
    limits = zip(prompts, trainer.num_val_batches, strict=False)
    return sum(min(len(loader.source), int(batches * loader.batch_size)) for loader, batches in limits)


def _within_training(trainer: Trainer) -> bool:
    """False in `validate` and the sanity check."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def _validation_due(trainer: Trainer) -> bool:
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return any(trainer.num_val_batches) and loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def _mark_validation_due(loops: dict[str, Any], began: bool) -> None:
    """Set Lightning's loops to the first batch of validation, so that a resumed run validates."""
    update = loops["epoch_loop.batch_progress"]
    for progress in (update["total"], update["current"]):
        progress["completed"] = progress["processed"]
    validation = loops["epoch_loop.val_loop.batch_progress"]
    before = validation["total"]["completed"] - validation["current"]["completed"] * began
    for progress, done in ((validation["total"], before), (validation["current"], 0)):
        progress.update(ready=done + 1, started=done + 1, processed=done, completed=done)
    validation["is_last_batch"] = False
