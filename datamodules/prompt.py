"""Prompts from any file or data set."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.datamodules.base import GroupDataModule, PromptSource, Split, evenly_spaced
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.records import SUFFIXES, Record, read_records
from lightning_cgrpo.tasks.functions.prompts import Prompts, columns

Rows = list[dict[str, Any]]


class PromptDataModule(GroupDataModule):
    """Prompts from .jsonl or Parquet files or the `datasets` library; their other columns are handed to the task.

    A prompt is a text, or a chat: a list of messages ``{"role": …, "content": …}``. Validation takes `val_path`, or
    else holds out `val_prompts` of the training records, evenly spaced (see `held_out`), so the same ones in every run
    and process; what repeats one of them is left out of training. With neither, there is no validation.

    Args:
        path: a file with the training prompts; or a folder with ``train.jsonl`` (or .parquet) and, if there is a test,
            ``test.jsonl``; or a name that `datasets.load_dataset` knows, with the splits ``train`` and ``test``.
        prompts_per_update: prompts of one update (one rollout), over all processes.
        prompt_column: the column with the prompts. The others keep their names.
        system_prompt: makes a chat of every prompt; one that begins with a system message keeps its own.
        subset: configuration of a data set from the `datasets` library, if it has several.
        val_path: validation prompts; of a folder or a named data set the split ``validation``.
        test_path: test prompts; of a folder or a named data set the split ``test``. Prediction takes them, too.
        val_prompts: how many training prompts to hold out, unless there is `val_path`.
        eval_prompts: prompts per batch in validation and test, over all processes.
        max_eval_prompts: evaluate on at most this many of a split's first prompts; all by default.
        test_train_prompts: measure at most this many training prompts, evenly spaced, in a test as well.
        seed: of the order of the prompts; by default the seed of `lightning.seed_everything`.

    Raises:
        RecordError: from `setup`, naming file and line, if a record is malformed.
        UserError: from `setup`, if a split is asked for that there isn't, or more prompts are held out than there are.
    """

    def __init__(
        self,
        path: str,
        prompts_per_update: int = 8,
        prompt_column: str = "prompt",
        system_prompt: str | None = None,
        subset: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        val_prompts: int = 0,
        eval_prompts: int = 64,
        max_eval_prompts: int | None = None,
        test_train_prompts: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__(prompts_per_update, eval_prompts, max_eval_prompts, test_train_prompts, seed)
        if val_prompts < 0:
            raise ValueError(f"Expected argument `val_prompts` to be at least 0, but got {val_prompts}.")
        self.path, self.subset, self.val_path, self.test_path = path, subset, val_path, test_path
        self.prompt_column, self.system_prompt, self.val_prompts = prompt_column, system_prompt, val_prompts

    def columns(self, record: Record) -> dict[str, Any]:
        """What sampler and task get of a record, the prompt as ``prompt``."""
        return columns(record, self.prompt_column, self.system_prompt)

    def setup(self, stage: str) -> None:
        """Read the prompts already here, so that a malformed one is reported before a model is loaded."""
        split: dict[str, Split] = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}
        self.source(split[stage])
        if stage == "fit" and not self._has_validation and self.trainer is not None:
            self.trainer.limit_val_batches = 0  # Lightning would warn of an empty loader
        if stage == "test" and self.test_train_prompts:
            self.source("train")

    def source(self, split: Split) -> PromptSource:
        if split == "val" and not self._has_validation:
            raise UserError("Expected argument `val_prompts` or `val_path`, to have prompts to validate on.")
        if split not in ("train", "val"):
            return Prompts(self._test)
        train, val = self._train_and_val
        return Prompts(train if split == "train" else val)

    @property
    def _has_validation(self) -> bool:
        return bool(self.val_path or self.val_prompts)

    def _read(self, path: str, split: str) -> Rows:
        return [self.columns(record) for record in read_records(path, split, self.subset)]

    @cached_property
    def _train_and_val(self) -> tuple[Rows, Rows]:
        train = self._read(self.path, "train")
        if self.val_path:
            val = self._read(self.val_path, "validation")
            trained = {_key(row) for row in train}
            shared = sum(_key(row) in trained for row in val)
            if shared:
                rank_zero_warn(
                    f"{shared} of the {len(val)} validation prompts are training prompts, too "
                    f"(data.val_path={self.val_path}): rates on these say nothing about others."
                )
            return train, val
        val = [train[index] for index in held_out(len(train), self.val_prompts)]
        known = {_key(row) for row in val}
        return [row for row in train if _key(row) not in known], val

    @cached_property
    def _test(self) -> Rows:
        if self.test_path is None and Path(self.path).suffix in SUFFIXES:
            raise UserError(f"Expected argument `test_path`, since `path` is a file of training prompts: {self.path}.")
        return self._read(self.test_path or self.path, "test")


def held_out(total: int, count: int) -> list[int]:
    """The records that validation takes: `count` of `total`, evenly spaced.

    Raises:
        UserError: if there are fewer.
    """
    if count > total:
        raise UserError(
            f"Expected data.val_prompts, which are held out of the {total} training prompts, to be fewer than these, "
            f"but got {count}, try data.val_prompts={total // 10}."
        )
    return evenly_spaced(total, count)


def _key(row: dict[str, Any]) -> str:
    return json.dumps(row["prompt"], sort_keys=True, default=repr)
