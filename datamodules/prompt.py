"""Prompts from a file or data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.inventory import Pieces
from lightning_cgrpo.core.prompts.records import SUFFIXES, Record, RecordError, read_records
from lightning_cgrpo.core.prompts.source import PromptSource, identities
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules.base import GroupDataModule, Split, evenly_spaced
from lightning_cgrpo.tasks.functions.prompts import Prompts, columns

Rows = list[dict[str, Any]]


class PromptDataModule(GroupDataModule):
    """Prompts from .jsonl or Parquet files or the `datasets` library. The task gets the other columns.

    A prompt is a text, or a chat: a list of messages ``{"role": …, "content": …}``. Training leaves out copies of
    held-out prompts. Without `val_path` and `val_prompts` there is no validation.

    Args:
        path: a file of training prompts; a folder with ``train.jsonl`` (or .parquet) and perhaps ``test.jsonl``; or a
            name for `datasets.load_dataset`, with the splits ``train`` and ``test``.
        prompt_column: column with the prompts.
        system_prompt: system message for prompts without one.
        subset: configuration of a `datasets` data set.
        val_path: validation prompts; in a folder or named data set, the split ``validation``.
        test_path: prompts for test and prediction; in a folder or named data set, the split ``test``.
        val_prompts: training prompts to hold out, without `val_path`.
        options: of `GroupDataModule`.

    Raises:
        RecordError: (from `setup`) a record is malformed; names file and line.
        UserError: (from `setup`) a split is missing, or there are too few prompts to hold out.
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
        **options: Any,
    ) -> None:
        super().__init__(prompts_per_update, **options)
        expect(val_prompts >= 0, "val_prompts", "at least 0", val_prompts)
        self.path, self.subset, self.val_path, self.test_path = path, subset, val_path, test_path
        self.prompt_column, self.system_prompt, self.val_prompts = prompt_column, system_prompt, val_prompts

    def columns(self, record: Record) -> dict[str, Any]:
        return columns(record, self.prompt_column, self.system_prompt)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        path = self.test_path or ""
        if stage == "fit" and Path(path).suffix in SUFFIXES and not Path(path).expanduser().exists():
            raise UserError(f"Expected a file at data.test_path={path}, but there is none (seen from {Path.cwd()}).")
        if stage == "fit" and not self._has_validation and self.trainer is not None:
            self.trainer.limit_val_batches = 0  # Lightning would warn of an empty loader
        if stage == "test" and self.test_train_prompts:
            self.source("train")

    def inventory(self, split: Split) -> list[Pieces]:
        """The split's records, with every malformed record."""
        paths = {"train": self.path, "val": self.val_path, "test": self.test_path or self.path}
        path = paths[split]
        if path is None or (split == "test" and self.needs_test_path):
            return super().inventory(split) if split == "val" and self._has_validation else []
        wrong: list[str] = []
        rows = self._read(path, "validation" if split == "val" else split, wrong)
        names = list(dict.fromkeys(name for row in rows for name in row))
        repeats = f"; {count:,} repeat an earlier prompt" if (count := len(rows) - len({*_keys(rows)})) else ""
        return [Pieces("records", len(rows) + len(wrong), tuple(wrong), f"columns {', '.join(names)}{repeats}", 1)]

    def source(self, split: Split) -> Prompts:
        if split == "val" and not self._has_validation:
            raise UserError("Expected argument `val_prompts` or `val_path`, to have prompts to validate on.")
        if split not in ("train", "val"):
            return Prompts(self._test)
        train, val = self._train_and_val
        return Prompts(train if split == "train" else val)

    def seen_prompts(self, source: PromptSource) -> set[int]:
        train, val = self._train_and_val
        seen = {*_keys(train), *_keys(val)}
        return {index for index, key in enumerate(_keys(source.rows or ())) if key in seen}

    @property
    def needs_test_path(self) -> bool:
        """True if there are no test prompts: `path` is a file, and `test_path` is not given."""
        return self.test_path is None and Path(self.path).suffix in SUFFIXES

    @property
    def _has_validation(self) -> bool:
        return bool(self.val_path or self.val_prompts)

    def _read(self, path: str, split: str, wrong: list[str] | None = None) -> Rows:
        """The columns of each record; with `wrong`, errors of malformed records are put there."""
        rows = []
        for record in read_records(path, split, self.subset, wrong):
            try:
                rows.append(self.columns(record))
            except RecordError as error:
                if wrong is None:
                    raise
                wrong.append(str(error))
        names = dict.fromkeys(name for row in rows for name in row)
        missing = {name: count for name in names if (count := sum(name not in row for row in rows))}
        if missing:
            rank_zero_warn(f"Rows of {path} without a column, whose value is None there: {missing} of {len(rows)}.")
        return rows

    @cached_property
    def _train_and_val(self) -> tuple[Rows, Rows]:
        train = self._read(self.path, "train")
        if self.val_path:
            val = self._read(self.val_path, "validation")
            trained = {*_keys(train)}
            shared = sum(key in trained for key in _keys(val))
            if shared:
                rank_zero_warn(
                    f"{shared} of the {len(val)} validation prompts are training prompts, too "
                    f"(data.val_path={self.val_path}): rates on these say nothing about others."
                )
            return train, val
        if self.val_prompts > len(train):
            raise UserError(
                f"Expected data.val_prompts, which are held out of the {len(train)} training prompts, to be fewer than "
                f"these, but got {self.val_prompts}, try data.val_prompts={len(train) // 10}."
            )
        val = [train[index] for index in evenly_spaced(len(train), self.val_prompts)]
        held = {*_keys(val)}
        return [row for row, key in zip(train, _keys(train), strict=True) if key not in held], val

    @cached_property
    def _test(self) -> Rows:
        if self.needs_test_path:
            raise UserError(f"Expected argument `test_path`, since `path` is a file of training prompts: {self.path}.")
        return self._read(self.test_path or self.path, "test")


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """The `identities` of the rows' prompts."""
    asked = {"prompt": [row["prompt"] for row in rows]}
    keys: list[float] = identities(PromptGroups(torch.arange(len(rows)), asked)).tolist()
    return keys
