"""Prompts from a file, a data set, or rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.core.prompts.fingerprints import prompt_fingerprint
from lightning_cgrpo.core.prompts.inventory import Pieces
from lightning_cgrpo.core.prompts.records import SUFFIXES, Record, RecordError, read_records, records_in_memory
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.datamodules.base import GroupDataModule, Split, evenly_spaced
from lightning_cgrpo.tasks.functions.prompts import Prompts, columns

Rows = list[dict[str, Any]]
Given = str | Path | Sequence[Mapping[str, Any]]
"""A path or name; or rows in memory, a `datasets.Dataset` or a list of dictionaries."""


class PromptDataModule(GroupDataModule):
    """Prompts from files, the `datasets` library or rows in memory. The task gets the other columns.

    A prompt is a text, or a chat: a list of messages ``{"role": …, "content": …}``. Training leaves out copies of
    held-out prompts. Without `val_path` and `val_prompts` there is no validation.

    Args:
        path: a file of training prompts (.jsonl, .parquet, .csv, whose values are texts, or .json, an array); a folder
            with ``train.jsonl`` (or another of these) and perhaps ``test.jsonl``; a name for `datasets.load_dataset`,
            with the splits ``train`` and ``test``; in Python also a `datasets.Dataset` or a list of dictionaries.
        prompt_column: column with the prompts.
        system_prompt: system message for prompts without one.
        subset: configuration of a `datasets` data set.
        val_path: validation prompts; in a folder or named data set, the split ``validation``.
        test_path: prompts for test and prediction; in a folder or named data set, the split ``test``.
        val_prompts: training prompts to hold out, without `val_path`.
        cluster: column whose equal values mark prompts that belong together, such as questions about one document;
            intervals, margins and certificates count them as one sample. Without it, prompts are taken to be
            independent.
        options: of `GroupDataModule`.

    Raises:
        RecordError: (from `setup`) a record is malformed; names file and line.
        UserError: (from `setup`) a split is missing, or there are too few prompts to hold out.
    """

    def __init__(
        self,
        path: Given,
        prompts_per_update: int = 8,
        prompt_column: str = "prompt",
        system_prompt: str | None = None,
        subset: str | None = None,
        val_path: Given | None = None,
        test_path: Given | None = None,
        val_prompts: int = 0,
        cluster: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(prompts_per_update, **options)
        expect(val_prompts >= 0, "val_prompts", "at least 0", val_prompts)
        self.path, self.subset, self.val_path, self.test_path = path, subset, val_path, test_path
        self.prompt_column, self.system_prompt, self.val_prompts = prompt_column, system_prompt, val_prompts
        self.cluster = cluster

    def columns(self, record: Record) -> dict[str, Any]:
        return columns(record, self.prompt_column, self.system_prompt)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        path = self.test_path
        if stage == "fit" and _is_file(path) and not expand_path(str(path)).exists():
            raise UserError(f"Expected a file at data.test_path={path}, but there is none (seen from {Path.cwd()}).")
        if stage == "fit":
            self._check_enough()
        if stage == "fit" and not self._has_validation and self.trainer is not None:
            self.trainer.limit_val_batches = 0  # Lightning would warn of an empty loader
        if stage == "test" and self.test_train_prompts:
            self.source("train")

    def inventory(self, split: Split) -> list[Pieces]:
        """The split's records, with every malformed record."""
        paths = {
            "train": self.path,
            "val": self.val_path,
            "test": self.path if self.test_path is None else self.test_path,
        }
        path = paths[split]
        if path is None or (split == "test" and self.needs_test_path):
            return super().inventory(split) if split == "val" and self._has_validation else []
        wrong: list[str] = []
        rows = self._read(path, "validation" if split == "val" else split, wrong)
        names = list(dict.fromkeys(name for row in rows for name in row))
        repeats = f"; {count:,} repeat an earlier prompt" if (count := len(rows) - len({*_keys(rows)})) else ""
        return [Pieces("records", len(rows) + len(wrong), tuple(wrong), f"columns {', '.join(names)}{repeats}")]

    def source(self, split: Split) -> Prompts:
        if split == "val" and not self._has_validation:
            raise UserError("Expected argument `val_prompts` or `val_path`, to have prompts to validate on.")
        if split not in ("train", "val"):
            return self._prompts(self._test)
        train, val = self._train_and_val
        return self._prompts(train if split == "train" else val)

    def _prompts(self, rows: Rows) -> Prompts:
        prompts = Prompts(rows, self.cluster)
        if self.cluster is not None and rows and self.cluster not in prompts.columns:
            raise UserError(
                f"Expected data.cluster to be a column of every split, but got '{self.cluster}', try one of "
                f"{', '.join(name for name in prompts.columns if name != 'prompt') or 'no column'}."
            )
        return prompts

    def overlapping_sources(self) -> Sequence[PromptSource]:
        return [Prompts(rows) for rows in self._train_and_val]

    @property
    def needs_test_path(self) -> bool:
        """True if there are no test prompts: `path` is a file, and `test_path` is not given."""
        return self.test_path is None and (_in_memory(self.path) or _is_file(self.path))

    @property
    def _has_validation(self) -> bool:
        return self.val_path is not None or bool(self.val_prompts)

    def _read(self, path: Given, split: str, wrong: list[str] | None = None) -> Rows:
        """The columns of each record; with `wrong`, errors of malformed records are put there."""
        name = _name(path)
        records = records_in_memory(path, name) if _in_memory(path) else read_records(name, split, self.subset, wrong)
        rows = []
        for record in records:
            try:
                rows.append(self.columns(record))
            except RecordError as error:
                if wrong is None:
                    raise
                wrong.append(str(error))
        names = dict.fromkeys(name for row in rows for name in row)
        missing = {name: count for name in names if (count := sum(name not in row for row in rows))}
        if missing:
            rank_zero_warn(f"Rows of {name} without a column, whose value is None there: {missing} of {len(rows)}.")
        return rows

    @cached_property
    def _train_and_val(self) -> tuple[Rows, Rows]:
        train = self._read(self.path, "train")
        if self.val_path is not None:
            val = self._read(self.val_path, "validation")
            trained = {*_keys(train)}
            shared = sum(key in trained for key in _keys(val))
            if shared:
                rank_zero_warn(
                    f"{shared} of the {len(val)} validation prompts are training prompts, too "
                    f"(data.val_path={_name(self.val_path)}): rates on these say nothing about others."
                )
            return train, val
        if self.val_prompts > len(train):
            raise UserError(
                f"Expected data.val_prompts, which are held out of the {len(train)} training prompts, to be fewer than "
                f"these, but got {self.val_prompts}, try data.val_prompts={len(train) // 10}."
            )
        val = [train[index] for index in evenly_spaced(len(train), self.val_prompts)]
        held = {*_keys(val)}
        kept = [row for row, key in zip(train, _keys(train), strict=True) if key not in held]
        repeats = len(train) - len(val) - len(kept)
        if repeats:
            rank_zero_warn(
                f"{repeats} of the {len(train)} training prompts are left out, because they repeat one of the "
                f"{len(val)} that data.val_prompts holds out."
            )
        return kept, val

    def _check_enough(self) -> None:
        """Refuse to train if the held-out prompts and their repeats leave no update."""
        train, val = self._train_and_val
        if self.val_path is None and val and len(train) < self.prompts_per_update:
            raise UserError(
                f"Expected data.val_prompts={self.val_prompts} to leave at least {self.prompts_per_update} training "
                f"prompts, for one update, but it leaves {len(train)}, because held-out prompts and their repeats are "
                "left out, try fewer data.val_prompts, a file of data.val_path, or more different prompts."
            )

    @cached_property
    def _test(self) -> Rows:
        if self.needs_test_path:
            raise UserError(
                f"Expected argument `test_path`, since `path` is a file of training prompts: {_name(self.path)}."
            )
        return self._read(self.path if self.test_path is None else self.test_path, "test")


def _in_memory(path: Given | None) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return path is not None and not isinstance(path, (str, Path))


def _is_file(path: Given | None) -> bool:
    return isinstance(path, (str, Path)) and Path(path).suffix in SUFFIXES


def _name(path: Given) -> str:
    return f"the given {type(path).__name__}" if _in_memory(path) else str(path)


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The fingerprints of the rows' prompts."""
    return [prompt_fingerprint(row) for row in rows]
