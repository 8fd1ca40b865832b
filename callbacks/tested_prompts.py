"""The callback that registers which prompts a test has shown."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_cgrpo.core.distributed import gather_objects_on_first, rank_zero_warn
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.core.prompts.source import is_endless
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.run.manifest import Manifest
from lightning_cgrpo.run.register import Register, shown_by


class TestedPrompts(Callback):
    """Writes the prompts of a test into the project's register, because a later certificate tells of them."""

    changes_learning = False
    __test__ = False

    def __init__(self) -> None:
        self._policy: dict[str, Any] = {}
        self._project = ""
        self._numbers: list[float] = []

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        manifest = Manifest.of(checkpoint)
        if manifest is not None:
            self._project = manifest.project
            self._policy = {"lineage": list(manifest.lineage), "update": checkpoint["global_step"]}

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx == 0 and self._policy and isinstance(batch, PromptGroups):
            self._numbers += identities(batch).tolist()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        numbers_by_process = gather_objects_on_first(self._numbers)
        if numbers_by_process is None or not self._policy or not isinstance(data, GroupDataModule):
            return
        source = data.source("test")
        if is_endless(source):
            shown = shown_by(stream=data.stream(), until=len(source))
        else:
            numbers = dict.fromkeys(chain.from_iterable(numbers_by_process))  # each once, in order
            shown = shown_by(numbers)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        event = {"event": "test", "at": at, "checkpoint": trainer.ckpt_path, **self._policy, "shown": shown}
        register = Register.of(self._project, Path(str(trainer.ckpt_path)).parent)
        try:
            with register.locked():
                register.append(event)
        except UserError as error:  # such as a project of another user, whose policies anyone may test
            rank_zero_warn(f"No certificate will tell of this test. {error}")
