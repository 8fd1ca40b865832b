"""Checked fields of JSON files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from driving_scenes.errors import InputError, did_you_mean

_MISSING = object()


class SceneError(InputError):
    """A file of scenes or trajectories isn't as documented."""


def load_json(path: str | Path) -> Any:
    """Raises:
    SceneError: the file is missing or isn't JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise SceneError(f"{path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise SceneError(f"{path}: Expected JSON, but it can't be read: {error}.") from None


@dataclass(frozen=True)
class Field:
    """A value of a JSON file at a `path` of keys. `SceneError` names the place of a wrong value."""

    value: Any
    file: str
    path: str = ""

    def wrong(self, expected: str, got: str | None = None) -> SceneError:
        shown = repr(self.value) if got is None else got
        if len(shown) > 60:
            shown = f"{shown[:60]}…"
        return SceneError(f"{self.file}: {self.path or 'top level'}: Expected {expected}, but got {shown}.")

    def __getitem__(self, key: str) -> Field:
        field = self.get(key, _MISSING)
        if field.value is _MISSING:
            raise SceneError(str(self.wrong(f"a field '{key}'", "none")) + did_you_mean(key, self.value))
        return field

    def get(self, key: str, default: Any = None) -> Field:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        path = f"{self.path}.{key}" if self.path else key
        return Field(self.value.get(key, default), self.file, path)

    def or_else(self, default: Any) -> Field:
        """The field, with `default` instead of null."""
        if self.value is None:
            return Field(default, self.file, self.path)
        return self

    def unknown(self, known: Collection[str]) -> dict[str, Any]:
        """The fields that aren't in `known`.

        Raises:
            SceneError: the value isn't an object, or a field resembles a missing field of `known`.
        """
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        others = {key: value for key, value in self.value.items() if key not in known}
        missing = [key for key in known if key not in self.value]
        for key in others:
            hint = did_you_mean(key, missing)
            if hint:
                raise SceneError(f"{self.file}: {self.path or 'top level'}: Unknown field '{key}'.{hint}")
        return others

    def __iter__(self) -> Iterator[Field]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return (Field(item, self.file, f"{self.path}[{i}]") for i, item in enumerate(self.value))

    def text(self, choices: Collection[str] | None = None) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        if choices is not None and self.value not in choices:
            raise self.wrong(f"one of {', '.join(choices)}")
        return self.value

    def optional_text(self) -> str | None:
        return None if self.value is None else self.text()

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def tensor(self, *shape: int) -> Tensor:
        """The value as finite float64 of this shape; -1 is any length, 0 included."""
        if isinstance(self.value, bool):  # torch reads a bool as a number
            raise self.wrong(f"numbers of the shape {_shape_text(shape)}")
        try:
            tensor = torch.tensor(self.value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise self.wrong(f"numbers of the shape {_shape_text(shape)}") from None
        if tensor.numel() == 0 and -1 in shape:
            tensor = tensor.reshape([max(length, 0) for length in shape])
        fits = tensor.dim() == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise self.wrong(f"numbers of the shape {_shape_text(shape)}", f"the shape {_shape_text(tensor.shape)}")
        if not tensor.isfinite().all():
            raise self.wrong("finite numbers")
        return tensor

    def number(self) -> float:
        return float(self.tensor())

    def points(self, least: int) -> Tensor:
        """At least `least` points ``[v, 2]``, not all equal."""
        points = self.tensor(-1, 2)
        if len(points) < least:
            raise self.wrong(f"at least {least} points", str(len(points)))
        if (points == points[0]).all():
            raise self.wrong("points that differ")
        return points

    def row(self, rows_by_name: dict[str, int]) -> int:
        name = self.text()
        if name not in rows_by_name:
            raise self.wrong("an id that the map has")
        return rows_by_name[name]

    def rows(self, rows_by_name: dict[str, int]) -> tuple[int, ...]:
        return tuple(item.row(rows_by_name) for item in self)


def rows_by_name(names: list[Field]) -> dict[str, int]:
    """Row of each name; names must differ."""
    rows: dict[str, int] = {}
    for i, name in enumerate(names):
        if rows.setdefault(name.text(), i) != i:
            raise name.wrong("every id once")
    return rows


def _shape_text(shape: Collection[int]) -> str:
    lengths = []
    for length in shape:
        lengths.append("n" if length == -1 else str(length))
    return "[" + ", ".join(lengths) + "]"
