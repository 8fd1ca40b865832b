"""The checkpoint callback."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import Enum, auto
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_cgrpo.callbacks.safe_checkpoints import SafeCheckpoints
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.user_code import by_signal
from lightning_cgrpo.modules.monitored import unknown_monitor
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import MERIT, Selection, Standing, too_few
from lightning_cgrpo.run.checkpoints.averages import name_average
from lightning_cgrpo.run.checkpoints.lightning_loops import (
    count_epoch_as_begun,
    count_validation_once,
    mark_validation_due,
    validation_follows,
)
from lightning_cgrpo.run.checkpoints.termination import Termination
from lightning_cgrpo.settings.effects import CONSTRAINTS
from lightning_cgrpo.settings.settings import is_numberless

VALIDATION = "val/"
VALIDATION_MERIT = f"{VALIDATION}{MERIT}"


class Ranking(Enum):
    """When the policy of an update is ranked among the best, and kept if it is one of them."""

    NOT_DUE = auto()
    NOW = auto()
    AFTER_VALIDATION = auto()


class Checkpoints(SafeCheckpoints):
    """Decides when checkpoints are written and ranked; resumed runs equal uninterrupted runs.

    - ``last.ckpt`` is the end of training, not only a multiple of `every_n_train_steps`.
    - Ctrl-C, SIGTERM and SIGHUP write ``last.ckpt``, also without `save_last`, after the current update or validation
      batch. Then all processes end, the first with status 130, 143 or 129. A second Ctrl-C ends the run at once; see
      `Termination`.
    - A resumed run repeats a due or interrupted validation.
    - With `monitor`, checkpoints are ranked after the same update's validation. A resumed run knows earlier runs' best
      checkpoints.
    - With `monitor` of validation, every validation ranks its policy, and no other policy gets its rank.
      A run without validation keeps the newest checkpoint.
    - ``val/merit`` stands for a rule (`Selection`): the best is the latest policy of the last third of the validations
      whose estimates meet all thresholds, with nearly the highest reward. A policy's rank is the update at which the
      rule chose it, or 0.
    - Files are written and found as in `SafeCheckpoints`.

    Args:
        every_n_minutes: with `save_last`, also write ``last.ckpt`` after the update that ends so long after the last
            checkpoint; None for never.
        args: of `ModelCheckpoint`.
        kwargs: of `ModelCheckpoint`.
    """

    changes_learning = False

    def __init__(self, *args: Any, every_n_minutes: float | None = 10.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        expect(self._train_time_interval is None, "train_time_interval", "left out, try every_n_minutes", "an interval")
        expect(every_n_minutes is None or every_n_minutes >= 0, "every_n_minutes", "at least 0", every_n_minutes)
        self.every_n_minutes = every_n_minutes
        self._written_at = 0.0
        self._validation_due = False
        """True from the end of an update until the validation that follows it has ended."""
        self._ranked_by = ""
        """The rule and the objective that rank checkpoints by ``val/merit``."""
        self._selection = Selection()

    # ------------------------------------------------------------------ start and resume

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if isinstance(pl_module, RolloutModule) and self.monitor == VALIDATION_MERIT:
            self._ranked_by = _ranking_rule(pl_module.objective)
        if not isinstance(trainer._signal_connector, Termination):
            trainer._signal_connector = Termination(trainer)

    def state_dict(self) -> dict[str, Any]:
        ranking = {"ranked_by": self._ranked_by, "selection": self._selection.state_dict()}
        return {**super().state_dict(), **ranking}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.current_score = state_dict.get("current_score")
        if state_dict.get("ranked_by", self._ranked_by) != self._ranked_by:
            best = state_dict["best_model_path"]
            if best:
                rank_zero_info(
                    f"The objective or the rule has changed, so {best}, the best before, is not compared with what "
                    "follows."
                )
            return
        # Lightning forgets the best checkpoints in a new folder, and every version of a run has a new folder.
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})
        if "selection" in state_dict:
            self._selection.load_state_dict(state_dict["selection"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._written_at = time.monotonic()
        ranks_by_merit = self.monitor == VALIDATION_MERIT and any(trainer.num_val_batches)
        if ranks_by_merit and isinstance(pl_module, RolloutModule):
            note = too_few(pl_module.objective, _validation_prompts(trainer))
            if note is not None:
                rank_zero_info(note)
        _termination(trainer).updating = True

    # ------------------------------------------------------------------ updates and validations

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        count_epoch_as_begun(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._validation_due = validation_follows(trainer)
        # Lightning resumes no finished run, so a run that is killed in its last validation needs an earlier checkpoint.
        if not (self._validation_due and _at_end(trainer)):
            self._save_after_update(trainer)
        self._end_if_asked(trainer)

    def _save_after_update(self, trainer: Trainer) -> None:
        ranking = self._ranking(trainer, validates=self._validation_due)
        if ranking is Ranking.NOW:
            self._rank_policy(trainer)
        # A link points to the checkpoint ranked last, so it waits for the ranking.
        waits = ranking is Ranking.AFTER_VALIDATION and self.save_last == "link"
        is_due = ranking is not Ranking.NOT_DUE or self._interval_ends(trainer)
        if is_due and not waits:
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
        # At the end here, because Lightning has closed the epoch in `on_train_end`; a longer run would count one more.
        if self.save_last and (_at_end(trainer) or self._last_is_old(trainer)):
            self._write_last(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        if _within_training(trainer):
            self._validation_due = True  # a resumed run may begin here
            count_validation_once(trainer)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        super().on_validation_batch_end(trainer, pl_module, *args)
        if _within_training(trainer):
            self._end_if_asked(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_due = False
        super().on_validation_end(trainer, pl_module)
        if not _within_training(trainer):
            return
        if self._ranking(trainer, validates=True) is Ranking.AFTER_VALIDATION:
            self._rank_policy(trainer)
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
        if self.save_last and _at_end(trainer):
            self._write_last(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Without Lightning's method, which would write a second file. The run may have ended early.
        if self.save_last and not _at_end(trainer):
            self._write_last(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._validation_due:
            mark_validation_due(checkpoint, began=trainer.validating)
            if trainer.validating:
                name_average(checkpoint)

    def _end_if_asked(self, trainer: Trainer) -> None:
        # All processes end together, because saving needs all processes.
        number = _termination(trainer).agreed()
        if not number or _at_end(trainer):
            return
        self._write_last(trainer)
        rank_zero_info(f"The run ends after update {trainer.global_step}. Resume it with --ckpt_path=last.")
        trainer.strategy.barrier()
        # Other processes report success, because Lightning kills the first process after another process's error.
        status = 128 + number if trainer.is_global_zero else 0
        raise by_signal(SystemExit(status))

    # ------------------------------------------------------------------ when to save

    def _ranking(self, trainer: Trainer, validates: bool) -> Ranking:
        """When this update's policy is ranked.

        Args:
            validates: whether this update is followed by a validation.
        """
        if self._ranks_validations(trainer):
            return Ranking.AFTER_VALIDATION if validates else Ranking.NOT_DUE
        if not self._interval_ends(trainer):
            return Ranking.NOT_DUE
        # Another metric may also come from the validation. The end of training waits in any case.
        waits = validates and (self.monitor is not None or _at_end(trainer))
        return Ranking.AFTER_VALIDATION if waits else Ranking.NOW

    def _ranks_validations(self, trainer: Trainer) -> bool:
        monitors_validation = self.monitor is not None and self.monitor.startswith(VALIDATION)
        return monitors_validation and self.save_top_k != 0 and any(trainer.num_val_batches)

    def _interval_ends(self, trainer: Trainer) -> bool:
        """Replaces Lightning's checks, which warn of manual optimization."""
        return self._every_n_train_steps > 0 and trainer.global_step % self._every_n_train_steps == 0

    def _last_is_old(self, trainer: Trainer) -> bool:
        """True if the last checkpoint is `every_n_minutes` old. Collective, because the clocks of processes differ."""
        if self.every_n_minutes is None:
            return False
        is_old = time.monotonic() - self._written_at >= 60 * self.every_n_minutes
        return bool(trainer.strategy.broadcast(is_old))

    # ------------------------------------------------------------------ ranking and writing

    def _rank_policy(self, trainer: Trainer) -> None:
        self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))

    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        by_merit = self.monitor == VALIDATION_MERIT
        if by_merit and not any(trainer.num_val_batches):
            if self.save_top_k:  # without validation, the newest checkpoint
                self._save_none_monitor_checkpoint(trainer, monitor_candidates)
        elif by_merit and VALIDATION_MERIT in monitor_candidates and self.save_top_k:
            self._save_if_chosen(trainer, monitor_candidates)
        elif self.monitor is None or self.monitor in monitor_candidates:
            super()._save_topk_checkpoint(trainer, monitor_candidates)
        elif self._never_comes(self.monitor, trainer, monitor_candidates):
            # A run with code of the user's own, which `check_monitors` leaves alone.
            raise unknown_monitor(self, self.monitor, monitor_candidates)

    def _save_if_chosen(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Rank the validated policy by its update if the rule chooses it, else by 0, below all that it has chosen."""
        module: Any = trainer.lightning_module
        standing = Standing.of(module.objective, module.evaluations["val"])
        is_chosen = standing is not None and self._selection.chooses(standing)
        rank = torch.tensor(trainer.global_step if is_chosen else 0, dtype=torch.float64)
        if self.check_monitor_top_k(trainer, rank):
            self._update_best_and_save(rank, trainer, monitor_candidates)

    @staticmethod
    def _never_comes(monitor: str, trainer: Trainer, metrics: Mapping[str, Tensor]) -> bool:
        """False for a metric that may come: of the first validation, or of a constraint without opportunity so far."""
        module: Any = trainer.lightning_module
        was_validated = any(name.startswith(VALIDATION) for name in metrics)
        if monitor.startswith(VALIDATION) and not was_validated:
            return False
        constraint = monitor.rpartition("/")[2]
        return constraint not in module.objective.constraints

    def _write_last(self, trainer: Trainer) -> None:
        """Write ``last.ckpt``, whatever `save_last` is, unless it is of this update."""
        if not self.dirpath or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = f"{self.dirpath}/{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}"
        # With `save_last`, last.ckpt is written or linked with every other checkpoint.
        is_current = self.save_last or self._last_checkpoint_saved == path
        if not (is_current and self._last_global_step_saved == trainer.global_step):
            self._save_checkpoint(trainer, path)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        self._written_at = time.monotonic()
        super()._save_checkpoint(trainer, filepath)


def _ranking_rule(objective: Objective) -> str:
    """Text that is equal for objectives whose checkpoints ``val/merit`` ranks alike."""
    # Fields that only show, such as the range of a mean, rank nothing.
    shown_fields = [field.name for field in fields(Constraint) if is_numberless(f"{CONSTRAINTS}.NAME.{field.name}")]
    without_shown: dict[str, Any] = dict.fromkeys(shown_fields)
    constraints = {name: replace(constraint, **without_shown) for name, constraint in objective.constraints.items()}
    rule = f"latest third: {replace(objective, constraints=constraints, look=None)!r}"
    if objective.look is None:
        return rule
    return f"{rule}, {objective.look!r}"


def _termination(trainer: Trainer) -> Termination:
    connector = trainer._signal_connector
    assert isinstance(connector, Termination)
    return connector


def _at_end(trainer: Trainer) -> bool:
    return trainer.global_step == trainer.estimated_stepping_batches


def _validation_prompts(trainer: Trainer) -> int:
    """The number of prompts of a validation, as far as its loaders tell."""
    loaders = trainer.val_dataloaders
    if not isinstance(loaders, list):
        loaders = [loaders]
    prompt_loaders = [loader for loader in loaders if isinstance(loader, PromptLoader)]
    total = 0
    for loader, batches in zip(prompt_loaders, trainer.num_val_batches, strict=False):
        total += min(len(loader.source), int(batches * loader.batch_size))
    return total


def _within_training(trainer: Trainer) -> bool:
    """False in `validate` and the sanity check."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking
