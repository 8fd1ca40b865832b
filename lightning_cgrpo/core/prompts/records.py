"""Records of a data set, from files, from the library `datasets`, or from rows in memory."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.errors import UserError, did_you_mean, install_command, kind_of
from lightning_cgrpo.core.json_client import hub_answers
from lightning_cgrpo.core.paths import expand_path

SUFFIXES = (".jsonl", ".parquet", ".csv", ".json")


class RecordError(UserError):
    """An unusable data set or record, named by file and line."""


DEEPEST = 100
"""Lists and dictionaries within each other in a field; the copies for reward functions call themselves for each."""


@dataclass(frozen=True)
class Record:
    """One object of a data set.

    Raises:
        RecordError: a field is nested more than `DEEPEST` deep.
    """

    values: dict[str, Any]  # its fields
    where: str  # file and line (train.jsonl:17) or file and row, from 1, for errors
    filled: bool = False  # Arrow fills absent fields of objects with None, so None means absent

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            # The containers of the field, level by level: each level's containers hold those of the next.
            level = [value] if isinstance(value, (dict, list, tuple)) else []
            depth = 0
            while level:
                depth += 1
                if depth > DEEPEST:
                    raise self.error(
                        f"Expected field '{name}' to be nested at most {DEEPEST} deep, but got more, try text in JSON."
                    )
                level = _inner_containers(level)

    def error(self, problem: str) -> RecordError:
        """An error to raise: ``train.jsonl:17: <problem>``."""
        return RecordError(f"{self.where}: {problem}")

    def field(self, name: str) -> Any:
        if name in self.values and self.values[name] is None:
            raise self.error(f"Expected field '{name}' to have a value, but it is null.")
        if name not in self.values:
            raise self.error(f"Expected a field '{name}', but got {', '.join(self.values) or 'no fields'}.")
        return self.values[name]

    def text(self, name: str) -> str:
        return self.check_text(self.field(name), f"field '{name}'")

    def check_text(self, value: Any, what: str) -> str:
        """Return `value`, called `what` in errors.

        Raises:
            RecordError: `value` is no string, blank, or not encodable (half of a surrogate pair).
        """
        if not isinstance(value, str):
            raise self.error(f"Expected {what} to be a string, but got {kind_of(value)}.")
        if not value.strip():
            raise self.error(f"Expected {what} to be a text, but it is empty.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"Expected {what} to be valid Unicode, but got {value[error.start]!r}.") from None
        return value


def _inner_containers(containers: Iterable[Any]) -> list[Any]:
    """The dictionaries, lists and tuples that are items of containers."""
    inner: list[Any] = []
    for container in containers:
        items = container.values() if isinstance(container, dict) else container
        inner += [item for item in items if isinstance(item, (dict, list, tuple))]
    return inner


def read_records(
    path: str | Path, split: str = "train", subset: str | None = None, wrong: list[str] | None = None
) -> list[Record]:
    """All records of a split, in order.

    Args:
        path: a .jsonl, .parquet, .csv or .json file; a folder with ``{split}.jsonl`` or another of these, or the shards
            ``{split}-*-of-*.parquet``; or a name for `datasets.load_dataset`.
        split: ignored for a file.
        subset: configuration of a named data set (``main``).
        wrong: gets the errors of malformed lines, which are then left out.

    Raises:
        RecordError: there are no records, or unreadable records.
    """
    location = expand_path(path)
    if location.is_dir():
        files = _files_of_split(location, split)
    elif location.is_file():
        files = [location]
    elif location.suffix not in SUFFIXES and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(path)):
        return _read_named(str(path), split, subset)
    else:
        hint = did_you_mean(location.name, _names_beside(location))
        raise RecordError(
            f"Expected a file or a folder at {location}, but there is none (seen from {Path.cwd()}).{hint}"
        )
    records: list[Record] = []
    for file in files:
        records += _read_file(file, wrong)
    if not records and not wrong:
        raise RecordError(f"Expected {', '.join(map(str, files))} to hold records, but got none.")
    return records


def _names_beside(location: Path) -> list[str]:
    """Names in the same folder of the same purpose, for a hint.

    Never a hint that would train on test prompts, or test on training prompts.
    """
    if not location.parent.is_dir():
        return []
    purpose = _purpose(location.name)
    return [entry.name for entry in location.parent.iterdir() if _purpose(entry.name) == purpose]


def _purpose(name: str) -> str:
    """The purpose of a file of prompts, by its name."""
    match = re.search(r"test|val|dev|eval|held", name.lower())
    if match is None:
        return ""
    return "test" if match[0] == "test" else "validation"


def records_in_memory(rows: Iterable[Any], name: str) -> list[Record]:
    """The records of a `datasets.Dataset`, or of a list of dictionaries.

    Args:
        name: of the rows, for errors.

    Raises:
        RecordError: a row is no dictionary, there are no rows, or they can be read only once.
    """
    if isinstance(rows, Iterator) or not (isinstance(rows, Iterable) or hasattr(rows, "__getitem__")):
        raise RecordError(f"Expected {name} to hold rows that can be read several times, try a list of dictionaries.")
    records = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise RecordError(
                f"Expected {name} to hold rows, each a dictionary by column, but row {number} is a "
                f"{type(row).__name__}, try a list of dictionaries, as from "
                "frame.to_dict('records') or table.to_pylist(), or one split of a DatasetDict, as in data['train']."
            )
        values = {column: _without_array(value) for column, value in row.items()}
        records.append(Record(values, f"{name}, row {number}", filled=True))
    if not records:
        raise RecordError(f"Expected {name} to hold rows, but got none.")
    return records


def _without_array(value: Any) -> Any:
    """The number or text of an array or tensor without dimensions, as of a `Dataset` with the format torch."""
    if getattr(value, "shape", None) == ():
        return value.item()
    return value


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """The file of a split, or its shards."""
    candidates = [folder / f"{split}{suffix}" for suffix in SUFFIXES]
    files = [file for file in candidates if file.is_file()]
    if len(files) > 1:
        raise RecordError(
            f"Expected {folder} to hold one file of the split '{split}', but got {files[0].name} and {files[1].name}."
        )
    files = files or sorted(folder.glob(f"{split}-*-of-*.parquet"))
    if files:
        return files
    present = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
    hint = ""
    if any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        hint = f", which `save_to_disk` wrote, try dataset.to_parquet('{split}.parquet')"
    raise RecordError(f"Expected {folder} to hold {split}.jsonl, .parquet, .csv or .json, but got {present}{hint}.")


def _read_file(file: Path, wrong: list[str] | None) -> Iterator[Record]:
    if file.suffix not in SUFFIXES:
        raise RecordError(f"Expected a file that ends in {' or '.join(SUFFIXES)}, but got {file}.")
    if file.suffix == ".jsonl":
        return _read_jsonl(file, wrong)
    if file.suffix == ".csv":
        return _read_csv(file)
    if file.suffix == ".json":
        return _read_json(file)
    return _read_parquet(file)


def _read_jsonl(file: Path, wrong: list[str] | None) -> Iterator[Record]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield _read_line(line, f"{file}:{number}", number == 1)
            except RecordError as error:
                if wrong is None:
                    raise
                wrong.append(str(error))


def _read_line(line: bytes, where: str, first: bool) -> Record:
    try:
        # Editors on Windows begin a file with a byte order mark.
        text = line.decode("utf-8-sig" if first else "utf-8")
        values = json.loads(text, object_pairs_hook=_without_repeated_keys)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at offset {error.start}"
        raise RecordError(f"{where}: Expected UTF-8, but got {byte}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: Expected a JSON object on the line, but got: {error}.") from None
    if not isinstance(values, dict):
        raise RecordError(f"{where}: Expected a JSON object, but got {kind_of(values)}.")
    return Record(values, where)


def _read_csv(file: Path) -> Iterator[Record]:
    """Rows below a line of column names; all values are texts."""
    csv.field_size_limit(2**31 - 1)  # the default cuts no row, but refuses texts of 131,072 characters
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, strict=True)
            names = next(rows, [])
            if len({*names}) < len(names):
                raise RecordError(f"{file}:1: Expected different names of columns, but got {', '.join(names)}.")
            for row in rows:
                where = f"{file}:{rows.line_num}"
                if not row:
                    continue
                if len(row) != len(names):
                    raise RecordError(f"{where}: Expected {len(names)} values, as columns, but got {len(row)}.")
                yield Record(dict(zip(names, row, strict=True)), where)
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"Expected {file} to be a CSV file in UTF-8, but got: {error}.") from None


def _read_json(file: Path) -> Iterator[Record]:
    """The objects of one array."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        rows = json.loads(text, object_pairs_hook=_without_repeated_keys)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"Expected {file} to be an array of JSON objects, but got: {error}; for an object on each line, try the "
            "name's end .jsonl."
        ) from None
    if not isinstance(rows, list):
        raise RecordError(f"Expected {file} to be an array of JSON objects, but got {kind_of(rows)}.")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise RecordError(f"{file}, item {number}: Expected a JSON object, but got {kind_of(row)}.")
        yield Record(row, f"{file}, item {number}")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these pairs.

    Raises:
        ValueError: a key occurs twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = [key for key, count in counts.items() if count > 1]
        raise ValueError(f"the key '{repeated[0]}' twice")
    return values


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
        raise RecordError(f"Expected {file} to hold texts in UTF-8, but got: {error}.") from None
    for number, values in enumerate(rows, 1):
        yield Record(values, f"{file}, row {number}", filled=True)


def _read_named(name: str, split: str, subset: str | None) -> list[Record]:
    try:
        import datasets
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _missing_extra(f"'{name}', which is no file or folder (seen from {Path.cwd()}),", "datasets") from error
    try:
        if not hub_answers():
            # Fails at once without an earlier download; the client would retry for half a minute.
            snapshot_download(name, repo_type="dataset", local_files_only=True)
        rows = datasets.load_dataset(name, subset, split=split)
    # The library raises many kinds: connection, missing data set, missing split, damaged cache.
    except Exception as error:
        raise RecordError(
            f"Expected '{name}' to be a file, a folder, or a data set that the `datasets` library can load, but there "
            f"is no such path (seen from {Path.cwd()}), and loading its split '{split}' gave {type(error).__name__}: "
            f"{error}. Without a network, try the path of a folder with {split}.jsonl or {split}.parquet."
        ) from error
    records = []
    for number, values in enumerate(rows, 1):
        records.append(Record(dict(values), f"{name} [{split}], row {number}", filled=True))
    return records


def _missing_extra(what: str, library: str) -> RecordError:
    return RecordError(
        f"Expected the library `{library}` to be installed, to read {what} but got none, try {install_command('data')}."
    )
