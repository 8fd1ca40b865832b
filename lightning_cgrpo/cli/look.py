"""A look: sampling one answer to each of the prompts that neither trained nor selected the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor

from lightning_cgrpo.cli.certificate import (
    Asked,
    Sample,
    check_prompts,
    check_ranges,
    cluster_sizes,
    decided,
    planned_tests,
)
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.configuration import Resolved
from lightning_cgrpo.core.distributed import gathered_on_first
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.source import identities
from lightning_cgrpo.core.rollout import PromptGroups, Signals
from lightning_cgrpo.datamodules.base import Certification, GroupDataModule
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.measurement import CLUSTER, IDENTITY, samples
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import key

SPLIT = "certify"
KEPT = ("checkpoints", "progress")
"""Callbacks that a look needs: reading checkpoints, and the progress bar."""


def sample_of(config: Resolved, objective: Objective, asked: Asked) -> Sample | None:
    """Answer each prompt once; None on all processes but the first. Collective.

    Raises:
        UserError: there are too few prompts.
    """
    callbacks = {name: value for name, value in (config.get("callbacks") or {}).items() if name in KEPT}
    # Loggers and limits of the run would write, or cut, what the certificate counts.
    trainer = {**(config.get("trainer") or {}), "logger": False, "limit_test_batches": None, "fast_dev_run": False}
    return _Look(config.replaced(trainer=trainer, callbacks=callbacks), objective, asked).sample


class _Look(CommandLine):
    """The command ``test``, at the prompts of a look."""

    def __init__(self, config: Resolved, objective: Objective, asked: Asked) -> None:
        self.objective, self.asked = objective, asked
        self.sample: Sample | None = None
        super().__init__("test", config, [])  # makes model, data and trainer, and calls `test`

    def test(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        ckpt_path: str,
        weights_only: bool,
        verbose: bool = False,
    ) -> None:
        """LightningCLI calls the method that has the command's name, before the trainer's."""
        if not isinstance(model, RolloutModule) or not isinstance(datamodule, GroupDataModule):
            raise UserError(
                "Expected a RolloutModule and a GroupDataModule, which know prompts that did not train, but got "
                f"{type(model).__name__} and {type(datamodule).__name__}."
            )
        datamodule.prepare_data()
        datamodule.setup("test")
        longest = model.sampler.longest
        check_ranges(self.objective, longest)
        prompts, available = self._prompts(datamodule, longest)
        sizes = cluster_sizes(len(prompts.source), prompts.clusters)
        what = "prompts" if len(sizes) == len(prompts.source) else "clusters of prompts"
        planned = planned_tests(self.objective, {}, longest, sizes)
        check_prompts(planned, len(sizes), 1 - self.asked.level, available, what)

        def check(signals: Signals) -> None:
            planned = planned_tests(self.objective, signals, longest, sizes)
            check_prompts(planned, len(sizes), 1 - self.asked.level, available, what)

        model.eval_group_size = 1
        record = _Record(self.objective, check, pairs=prompts.companions is not None)
        self.trainer.callbacks.append(record)  # type: ignore[attr-defined]
        loader = prompts.loader(datamodule.eval_prompts)
        self.trainer.test(model, {SPLIT: loader}, ckpt_path, verbose=False, weights_only=weights_only)
        if record.rows is None:  # not the first process
            return
        rows, source = _without_repeats(record.rows, prompts, record.assumed)
        shown = [*dict.fromkeys([*prompts.identities, *record.companions])]
        self.sample = Sample(rows, source, longest, record.single, shown, prompts.new_until)

    def _prompts(self, data: GroupDataModule, longest: int | None) -> tuple[Certification, int | None]:
        """The prompts of the look, and the number that the data has; None if the data generates any number."""
        endless = getattr(data.source("test"), "endless", False)  # a user's own source may be any class
        whole = data.certification(None, self.asked.used)
        available = None if endless else len(whole.source)
        asked = self.asked.prompts
        number = min(asked or len(whole.source), available or math.inf)
        check_prompts(planned_tests(self.objective, {}, longest), number, 1 - self.asked.level, available)
        return (whole if asked is None else data.certification(asked, self.asked.used)), available


class _Record(Callback):
    """Gathers the sums of every prompt, and checks the first batch.

    Args:
        check: refuses, by the signals of the first batch, a look that could certify nothing.
        pairs: whether the second half of a batch accompanies the first.

    Attributes:
        rows: sums ``[N]`` of all prompts by name; None but on the first process.
        single: see `Sample`.
        assumed: whether prompts are taken to be independent, because their clusters are not known.
        companions: identities of the prompts shown beside others, on the first process.
    """

    def __init__(self, objective: Objective, check: Callable[[Signals], None], pairs: bool) -> None:
        self.objective, self.check, self.pairs = objective, check, pairs
        self.rows: dict[str, Tensor] | None = None
        self.single: dict[str, bool] = {}
        self.assumed = False
        self.companions: list[float] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if self.pairs:
            shown: PromptGroups = outputs["prompts"]
            self.companions += identities(shown)[len(shown) // 2 :].tolist()
        if batch_idx == 0:
            signals: Signals = outputs["signals"]
            for name, constraint in decided(self.objective).items():
                signal = signals.get(key(name, constraint))
                self.single[name] = signal is not None and signal.of_whole_answers
            self.check(signals)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RolloutModule)
        sums = pl_module.sums(SPLIT)
        self.rows, self.assumed = sums.by_prompt(), sums.assumed
        of_all = gathered_on_first(self.companions)
        self.companions = [] if of_all is None else [number for part in of_all for number in part]


def _without_repeats(rows: dict[str, Tensor], prompts: Certification, assumed: bool) -> tuple[dict[str, Tensor], str]:
    """The first row of each different prompt, with its sample's number as `CLUSTER`, and the words for these prompts.

    Prompts that a chat template or tokenizer renders alike are one, and so are a prompt and its companion.
    """
    # By identity, because the order must not depend on the number of processes.
    first = torch.from_numpy(np.unique(rows[IDENTITY].numpy(), return_index=True)[1])
    kept = {name: values[first] for name, values in rows.items()}
    identity, cluster = kept.pop(IDENTITY), kept.pop(CLUSTER)
    if not assumed:
        kept[CLUSTER] = samples(identity, cluster)[1]
    repeats = len(prompts.source) - len(first)
    return kept, f"{prompts.words}, without {repeats:,} that read as others do" if repeats else prompts.words
