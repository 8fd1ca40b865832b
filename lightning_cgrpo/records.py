"""Records of a data set, from .jsonl or Parquet files or the `datasets` library; a fault is named by file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_cgrpo.errors import UserError, installing
from lightning_cgrpo.hub import hub_answers

SUFFIXES = (".jsonl", ".parquet")


class RecordError(UserError):
    """A data set or one of its records can't be used: the message says which, and what to change."""


@dataclass(frozen=True)
class Record:
    """One object of a data set.

    Args:
        values: its fields.
        where: file and line (``train.jsonl:17``, the first being 1), or file and row, for messages.

    Example:
        >>> Record({"question": "1 + 1?"}, "train.jsonl:1").text("question")
        '1 + 1?'
    """

    values: dict[str, Any]
    where: str

    def error(self, problem: str) -> RecordError:
        """An error about this record, to be raised: ``train.jsonl:17: <problem>``."""
        return RecordError(f"{self.where}: {problem}")

    def field(self, name: str) -> Any:
        """The field `name`.

        Raises:
            RecordError: if there is none, or it is null.
        """
        if self.values.get(name) is None:
            raise self.error(f"Expected a field '{name}', but got {', '.join(self.values) or 'no fields'}.")
        return self.values[name]

    def text(self, name: str) -> str:
        """The field `name`, a text.

        Raises:
            RecordError: if it is missing, not a string, blank, or not encodable (half of a surrogate pair).
        """
        return self.check_text(self.field(name), f"field '{name}'")

    def check_text(self, value: Any, what: str) -> str:
        """`value` if it is a text as `text` wants it; `what` names it in messages."""
        if not isinstance(value, str):
            raise self.error(f"Expected {what} to be a string, but got {type(value).__name__}.")
        if not value.strip():
            raise self.error(f"Expected {what} to be a text, but it is empty.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"Expected {what} to be valid Unicode, but got {value[error.start]!r}.") from None
        return value


def read_records(path: str | Path, split: str = "train", subset: str | None = None) -> list[Record]:
    """All records of a split, in their order.

    Args:
        path: a .jsonl or .parquet file; or a folder with ``{split}.jsonl``, ``{split}.parquet`` or the shards
            ``{split}-*-of-*.parquet``; or, where there is no such file or folder, a name that
            `datasets.load_dataset` knows.
        split: which file of a folder, or which split of a data set; a file is taken as it is.
        subset: configuration of the named data set (``main``), if it has several.

    Raises:
        RecordError: if there is nothing to read, or a record is malformed.
    """
    location = Path(path).expanduser()
    if location.is_dir():
        files = _files_of_split(location, split)
    elif location.is_file():
        files = [location]
    elif location.suffix not in SUFFIXES and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(path)):
        return _read_named(str(path), split, subset)
    else:
        raise RecordError(f"Expected a file or a folder at {path}, but there is none (seen from {Path.cwd()}).")
    records = [record for file in files for record in _read_file(file)]
    if not records:
        raise RecordError(f"Expected {', '.join(map(str, files))} to hold records, but got none.")
    return records


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = [file for suffix in SUFFIXES if (file := folder / f"{split}{suffix}").is_file()]
    if len(files) > 1:
        raise RecordError(
            f"Expected {folder} to hold one file of the split '{split}', but got {files[0].name} and {files[1].name}."
        )
    files = files or sorted(folder.glob(f"{split}-*-of-*.parquet"))
    if not files:
        present = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
        raise RecordError(f"Expected {folder} to hold {split}.jsonl or {split}.parquet, but got {present}.")
    return files


def _read_file(file: Path) -> Iterator[Record]:
    if file.suffix == ".jsonl":
        return _read_jsonl(file)
    if file.suffix == ".parquet":
        return _read_parquet(file)
    raise RecordError(f"Expected a file that ends in {' or '.join(SUFFIXES)}, but got {file}.")


def _read_jsonl(file: Path) -> Iterator[Record]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            try:
                values = json.loads(line.decode())
            except UnicodeDecodeError as error:
                got = f"byte 0x{line[error.start]:02x} at offset {error.start}"
                raise RecordError(f"{where}: Expected UTF-8, but got {got}.") from None
            except (ValueError, RecursionError) as error:
                raise RecordError(f"{where}: Expected a JSON object on the line, but got: {error}.") from None
            if not isinstance(values, dict):
                raise RecordError(f"{where}: Expected a JSON object, but got a {type(values).__name__}.")
            yield Record(values, where)


def _read_parquet(file: Path) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise _missing_extra(str(file), "pyarrow") from error
    try:
        with parquet.ParquetFile(file) as content:
            table = content.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"Expected {file} to be a Parquet file, but got: {error}") from error
    try:
        rows = table.to_pylist()
    except UnicodeDecodeError as error:
        raise RecordError(f"{file}, row {_first_undecodable(table)}: Expected UTF-8, but got: {error}.") from None
    for number, values in enumerate(rows, 1):
        yield Record(values, f"{file}, row {number}")


def _first_undecodable(table: Any) -> int:
    for row in range(table.num_rows):
        try:
            table.slice(row, 1).to_pylist()
        except UnicodeDecodeError:
            return row + 1
    raise AssertionError("Expected a row that is not UTF-8.")


def _read_named(name: str, split: str, subset: str | None) -> list[Record]:
    try:
        import datasets
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _missing_extra(f"'{name}', which is no file or folder (seen from {Path.cwd()}),", "datasets") from error
    try:
        if not hub_answers():
            # Raises at once where nothing has been downloaded before, and the client would try for half a minute.
            snapshot_download(name, repo_type="dataset", local_files_only=True)
        rows = datasets.load_dataset(name, subset, split=split)
    # The library raises all kinds: connection, missing data set, missing split, a damaged cache.
    except Exception as error:
        raise RecordError(
            f"Expected '{name}' to be a file, a folder, or a data set that the `datasets` library can load, but there "
            f"is no such path (seen from {Path.cwd()}), and loading its split '{split}' gave {type(error).__name__}: "
            f"{error}. Without a network, try the path of a folder with {split}.jsonl or {split}.parquet."
        ) from error
    return [Record(dict(values), f"{name} [{split}], row {number}") for number, values in enumerate(rows, 1)]


def _missing_extra(what: str, library: str) -> RecordError:
    return RecordError(
        f"Expected the library `{library}` to be installed, to read {what} but got none, try {installing('data')}."
    )
