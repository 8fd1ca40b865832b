"""Prompts from a file, a data set, or rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
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
        self.path = path
        self.prompt_column = prompt_column
        self.system_prompt = system_prompt
        self.subset = subset
        self.val_path = val_path
        self.test_path = test_path
        self.val_prompts = val_prompts
        self.cluster = cluster

    def columns(self, record: Record) -> dict[str, Any]:
        return columns(record, self.prompt_column, self.system_prompt)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            path = self.test_path
            if _is_file(path) and not expand_path(str(path)).exists():
                raise UserError(
                    f"Expected a file at data.test_path={path}, but there is none (seen from {Path.cwd()})."
                )
            self._check_enough()
            if not self._has_validation and self.trainer is not None:
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
        if path is None:
            # Held-out training prompts are validation prompts without a file.
            return super().inventory(split) if split == "val" and self._has_validation else []
        if split == "test" and self.needs_test_path:
            return []
        malformed: list[str] = []
        rows = self._read_rows(path, "validation" if split == "val" else split, malformed)
        note = f"columns {', '.join(_column_names(rows))}"
        repeats = len(rows) - len(set(_prompt_keys(rows)))
        if repeats:
            note += f"; {repeats:,} repeat an earlier prompt"
        return [Pieces("records", len(rows) + len(malformed), tuple(malformed), note)]

    def source(self, split: Split) -> Prompts:
        if split == "val" and not self._has_validation:
            raise UserError("Expected argument `val_prompts` or `val_path`, to have prompts to validate on.")
        if split not in ("train", "val"):
            return self._make_prompts(self._test_rows)
        train, val = self._train_and_val
        return self._make_prompts(train if split == "train" else val)

    def _make_prompts(self, rows: Rows) -> Prompts:
        prompts = Prompts(rows, self.cluster)
        if self.cluster is not None and rows and self.cluster not in prompts.columns:
            others = [name for name in prompts.columns if name != "prompt"]
            raise UserError(
                f"Expected data.cluster to be a column of every split, but got '{self.cluster}', try one of "
                f"{', '.join(others) or 'no column'}."
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

    def _read_rows(self, path: Given, split: str, malformed: list[str] | None = None) -> Rows:
        """The columns of each record; with `malformed`, errors of malformed records are put there."""
        name = _name_of(path)
        if _in_memory(path):
            records = records_in_memory(path, name)
        else:
            records = read_records(name, split, self.subset, malformed)
        rows = []
        for record in records:
            try:
                rows.append(self.columns(record))
            except RecordError as error:
                if malformed is None:
                    raise
                malformed.append(str(error))
        missing = {}
        for column in _column_names(rows):
            count = sum(column not in row for row in rows)
            if count:
                missing[column] = count
        if missing:
            rank_zero_warn(f"Rows of {name} without a column, whose value is None there: {missing} of {len(rows)}.")
        return rows

    @cached_property
    def _train_and_val(self) -> tuple[Rows, Rows]:
        train = self._read_rows(self.path, "train")
        if self.val_path is None:
            return self._hold_out(train)
        val = self._read_rows(self.val_path, "validation")
        train_keys = set(_prompt_keys(train))
        shared = sum(key in train_keys for key in _prompt_keys(val))
        if shared:
            rank_zero_warn(
                f"{shared} of the {len(val)} validation prompts are training prompts, too "
                f"(data.val_path={_name_of(self.val_path)}): rates on these say nothing about others."
            )
        return train, val

    def _hold_out(self, train: Rows) -> tuple[Rows, Rows]:
        """Training prompts without the held-out prompts and their repeats, and the held-out prompts."""
        if self.val_prompts > len(train):
            raise UserError(
                f"Expected data.val_prompts, which are held out of the {len(train)} training prompts, to be fewer than "
                f"these, but got {self.val_prompts}, try data.val_prompts={len(train) // 10}."
            )
        val = [train[index] for index in evenly_spaced(len(train), self.val_prompts)]
        val_keys = set(_prompt_keys(val))
        kept = [row for row, key in zip(train, _prompt_keys(train), strict=True) if key not in val_keys]
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
    def _test_rows(self) -> Rows:
        if self.needs_test_path:
            raise UserError(
                f"Expected argument `test_path`, since `path` is a file of training prompts: {_name_of(self.path)}."
            )
        return self._read_rows(self.path if self.test_path is None else self.test_path, "test")


def _in_memory(path: Given | None) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return path is not None and not isinstance(path, (str, Path))


def _is_file(path: Given | None) -> bool:
    return isinstance(path, (str, Path)) and Path(path).suffix in SUFFIXES


def _name_of(path: Given) -> str:
    return f"the given {type(path).__name__}" if _in_memory(path) else str(path)


def _column_names(rows: Rows) -> list[str]:
    """The names of the columns of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(chain.from_iterable(rows)))


def _prompt_keys(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The fingerprints of the rows' prompts."""
    return [prompt_fingerprint(row) for row in rows]
