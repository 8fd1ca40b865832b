"""Copies for code of the user, which may write into what it gets."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal

_D = TypeVar("_D", bound=Mapping[str, Any])


def copied(value: Any) -> Any:
    """The value with copies of its containers, tensors, arrays and PIL images, also inside rollouts and signals.

    Containers are lists, deques, tuples, dicts, sets and bytearrays, with their subclasses, and arrays of objects.

    One rule for all code of the user (worlds, tasks, functions, tools, callbacks): it gets copies, so that what it
    changes in place is neither recorded nor trained on. Objects of other classes, such as environments, are passed on.

    Example:
        >>> chat = [{"role": "user", "content": "Hello"}]
        >>> copied(chat)[0]["content"] = "Goodbye"
        >>> chat
        [{'role': 'user', 'content': 'Hello'}]
    """
    return _copy_value(value, {})


def copied_on_reading(output: _D) -> _D:
    """The output of a step for callbacks, which share it: a mapping whose every reading is a copy."""
    return cast(_D, _Handed(output))


class _Handed(UserDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return copied(super().__getitem__(key))

    def copy(self) -> _Handed:
        """Itself, because Lightning copies the output of a training step, and would read it."""
        return self


def _copy_value(value: Any, copies: dict[int, Any]) -> Any:
    """As `copied`; a tensor, array or image that occurs twice is copied once, because a group shares its images.

    Args:
        copies: the copies so far, by the identity of the value.
    """
    # The most common kinds first.
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if type(value) is dict:
        return {key: _copy_value(item, copies) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy_value(item, copies) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_copy_value(item, copies) for item in value)
    if isinstance(value, (dict, list, deque, set, bytearray)):
        return _copy_container(value, copies)
    if isinstance(value, (PromptGroups, Rollouts, Signal)):
        parts = {part.name: _copy_value(getattr(value, part.name), copies) for part in fields(value)}
        return replace(value, **parts)
    if id(value) not in copies:
        copies[id(value)] = _copy_array(value, copies)
    return copies[id(value)]


def _copy_container(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of the same class, such as `OrderedDict`, whose items are copies."""
    container = copy(value)
    if isinstance(value, (set, bytearray)):
        return container  # its items cannot be changed
    places = list(value) if isinstance(value, dict) else range(len(value))
    for place in places:
        container[place] = _copy_value(value[place], copies)
    return container


def _copy_array(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of a tensor, an array or an image; any other object itself."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray) and value.dtype == object:
        array = value.copy()
        for place, item in np.ndenumerate(value):
            array[place] = _copy_value(item, copies)
        return array
    is_image = type(value).__module__.startswith("PIL.")  # without an import of PIL
    if is_image or isinstance(value, np.ndarray):
        return value.copy()
    return value
