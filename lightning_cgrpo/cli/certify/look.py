"""A look: sampling one answer to each of the prompts that neither trained nor selected the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch import Tensor

from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.core.prompts.source import PromptLoader, PromptSource, is_endless
from lightning_cgrpo.core.rollout import Signals
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.datamodules.certification import Certification
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.evaluation import CLUSTER, IDENTITY, number_samples
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import signal_key
from lightning_cgrpo.run.certificate import (
    Array,
    Sample,
    check_prompts,
    check_ranges,
    cluster_sizes,
    planned_tests,
)
from lightning_cgrpo.run.looks import Asked, Ledger, Used
from lightning_cgrpo.run.register import shown_by
from lightning_cgrpo.settings.configuration import ConfigError, Resolved

SPLIT = "certify"
KEPT = ("checkpoints", "progress")
"""Callbacks that a look needs: reading checkpoints, and the progress bar."""


def sample_of(config: Resolved, objective: Objective, ledger: Ledger) -> tuple[Asked, Sample] | None:
    """Begin a look in the ledger, and answer each prompt once; None on all processes but the first. Collective.

    Raises:
        UserError: there are too few prompts.
    """
    callbacks = config.get("callbacks") or {}
    callbacks = {name: value for name, value in callbacks.items() if name in KEPT}
    # The certificate counts every prompt, so no limit of the run applies, and its logger writes nothing.
    trainer = dict(config.get("trainer") or {})
    trainer |= {"logger": False, "limit_test_batches": None, "fast_dev_run": False}
    look = _Look(config.replaced(trainer=trainer, callbacks=callbacks), objective, ledger)
    look.run()
    return look.answered


@dataclass(frozen=True)
class _LookPrompts:
    """A question, and the prompts of the look that answers it.

    Args:
        asked: the question.
        prompts: the prompts to answer.
        available: prompts that the data has; None if the data generates any number.
        sizes: prompts of each cluster, see `cluster_sizes`.
    """

    asked: Asked
    prompts: Certification
    available: int | None
    sizes: Array


class _Look(CommandLine):
    """The command ``test``, at the prompts of a look; the constructor makes model, data and trainer.

    Attributes:
        answered: the question and its answers, after `run`; None on all processes but the first.
    """

    registers = False

    def __init__(self, config: Resolved, objective: Objective, ledger: Ledger) -> None:
        self.objective = objective
        self.ledger = ledger
        self.answered: tuple[Asked, Sample] | None = None
        super().__init__("test", config, [])

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing at the end of LightningCLI's constructor, because `run` runs the command."""

    def run(self) -> None:
        """Call `test`. Collective."""
        super()._run_subcommand("test")

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
        self._check_first_look(datamodule.source("test"), longest)
        model.eval_group_size = 1
        look_data = _LookData(lambda: self._deal_prompts(datamodule, longest))
        self.trainer.test(model, look_data, ckpt_path, verbose=False, weights_only=weights_only)

        record = look_data.record
        if record.rows is None:  # not the first process
            return
        rows, source = _without_repeats(record.rows, record.look.prompts, record.assumed)
        self.answered = record.look.asked, Sample(rows, source, longest, record.single, self._training_differences())

    def _training_differences(self) -> list[str]:
        """Differences of the policy to its training."""
        differences: list[str] = []
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RunManifest):
                differences += callback.told
        return differences

    def _check_first_look(self, source: PromptSource, longest: int | None) -> None:
        """Before weights are read, refuse a question that even a first look could not certify."""
        question = self.ledger.about["question"]
        first = Asked(question["prompts"], question["confidence"], 1, Used())
        available = None if is_endless(source) else len(source)
        self._check_number(first, longest, available, len(source))

    def _check_number(self, asked: Asked, longest: int | None, available: int | None, default: int) -> None:
        """Refuse a number of prompts that could certify nothing, even if the prompts are independent.

        Args:
            available: see `_LookPrompts`.
            default: the number of prompts where none is asked for.
        """
        wanted = asked.prompts or default
        number = min(wanted, available or wanted)
        _check_power(self.objective, longest, asked, available, np.ones(number))

    def _deal_prompts(self, data: GroupDataModule, longest: int | None) -> tuple[PromptLoader, _Record]:
        """The prompts of the look, which is written down before they are shown, and its record. Collective."""
        with self.ledger.turn() as asked:
            look = self._choose_prompts(data, asked, longest)
            # Refuse too few clusters before the look is written down.
            _check_power(self.objective, longest, asked, look.available, look.sizes)
            self.ledger.begin(asked, _shown_prompts(data, look.prompts))
        return look.prompts.loader(data.eval_prompts, data.worker), _Record(self.objective, longest, look)

    def _choose_prompts(self, data: GroupDataModule, asked: Asked, longest: int | None) -> _LookPrompts:
        """The prompts that answer the question."""
        prompts = data.certification(None, asked.used)
        available = None if is_endless(data.source("test")) else len(prompts.source)
        self._check_number(asked, longest, available, len(prompts.source))
        if asked.prompts is not None:
            prompts = data.certification(asked.prompts, asked.used)
        return _LookPrompts(asked, prompts, available, cluster_sizes(len(prompts.source), prompts.clusters))


def _check_power(
    objective: Objective,
    longest: int | None,
    asked: Asked,
    available: int | None,
    sizes: Array,
    signals: Signals | None = None,
) -> None:
    """Refuse a look that could certify nothing even without a violation. Collective.

    Args:
        available: see `_LookPrompts`.
        sizes: prompts of each cluster, see `cluster_sizes`.
        signals: signals of the first batch, if prompts were shown.
    """
    clustered = bool(sizes.max(initial=1) > 1)
    planned = planned_tests(objective, signals or {}, longest, sizes)
    check_prompts(planned, len(sizes), 1 - asked.level, available, clustered)


class _LookData(LightningDataModule):
    """Calls `deal` for the test prompts and their record, when the processes are connected and the weights are read."""

    record: _Record

    def __init__(self, deal: Callable[[], tuple[PromptLoader, _Record]]) -> None:
        super().__init__()
        self.deal = deal

    def test_dataloader(self) -> dict[str, PromptLoader]:
        loader, self.record = self.deal()
        assert self.trainer is not None
        self.trainer.callbacks.append(self.record)  # type: ignore[attr-defined]
        return {SPLIT: loader}


def _shown_prompts(data: GroupDataModule, prompts: Certification) -> dict[str, Any]:
    """The prompts of a look, companions included, as the register has them."""
    if prompts.new_until:
        # Generated prompts are known by their place in the stream.
        return shown_by(stream=data.stream(), first=prompts.new_until - len(prompts.source), until=prompts.new_until)
    numbers = [*prompts.identities]
    if prompts.companions is not None:
        for index in torch.arange(len(prompts.companions)).split(data.eval_prompts):
            numbers += identities(prompts.companions.groups(index)).tolist()
    return shown_by([*dict.fromkeys(numbers)])


class _Record(Callback):
    """Gathers the sums of every prompt, and refuses, by its first batch, a look that could certify nothing.

    Args:
        longest: see `Sample`.
        look: the question and its prompts.

    Attributes:
        rows: sums ``[N]`` of all prompts by name; None but on the first process.
        single: see `Sample`.
        assumed: whether prompts are taken to be independent, because their clusters are not known.
    """

    def __init__(self, objective: Objective, longest: int | None, look: _LookPrompts) -> None:
        self.objective = objective
        self.longest = longest
        self.look = look
        self.rows: dict[str, Tensor] | None = None
        self.single: dict[str, bool] = {}
        self.assumed = False

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if batch_idx == 0:
            signals: Signals = outputs["signals"]
            for name, constraint in self.objective.decided.items():
                signal = signals.get(signal_key(name, constraint))
                self.single[name] = signal is not None and signal.of_whole_answers
            self._check_signals(signals)

    def _check_signals(self, signals: Signals) -> None:
        look = self.look
        try:
            _check_power(self.objective, self.longest, look.asked, look.available, look.sizes, signals)
        except ConfigError as error:
            raise ConfigError(f"{error} The look is spent, because prompts were shown.") from None

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RolloutModule)
        sums = pl_module.sums(SPLIT)
        self.rows = sums.by_prompt()
        self.assumed = sums.assumed


def _without_repeats(rows: dict[str, Tensor], prompts: Certification, assumed: bool) -> tuple[dict[str, Tensor], str]:
    """The first row of each different prompt, with its sample's number as `CLUSTER`, and the words for these prompts.

    Prompts that a chat template or tokenizer renders alike are one, and so are a prompt and its companion.
    """
    # Rows are ordered by identity, because the order must not depend on the number of processes.
    _, first_rows = np.unique(rows[IDENTITY].numpy(), return_index=True)
    first = torch.from_numpy(first_rows)  # [different prompts]
    kept = {name: values[first] for name, values in rows.items() if name not in (IDENTITY, CLUSTER)}
    if not assumed:
        # Samples are numbered over all rows, because a repeat may link two clusters.
        _, sample_numbers = number_samples(rows[IDENTITY], rows[CLUSTER])
        kept[CLUSTER] = sample_numbers[first]
    repeats = len(prompts.source) - len(first)
    if repeats:
        return kept, f"{prompts.words}, without {repeats:,} that read as others do"
    return kept, prompts.words
