"""Settings of a run from Python: the arguments that its objects were made with, by the keys of a configuration."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Self

import torch

from lightning_cgrpo.settings.settings import with_hash
from lightning_cgrpo.settings.signatures import PACKAGES

GIVEN = "_given_arguments"
UNTOLD = object()
DEEPEST = 20
"""Objects within objects, because two may hold each other."""
LONGEST = 1_000
"""Items of a container that is a setting; longer containers are data, whose prompts have fingerprints."""
SECRET = 8
"""Characters of a text from which on it is no coincidence that a variable of the environment has it, too."""


class Stated:
    """Base of classes whose objects keep the arguments that they were made with, as plain values."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # Not by the object's own method, because a module is not initialized yet.
        object.__setattr__(made, GIVEN, _arguments(cls, args, kwargs))
        return made


def described(value: Any, depth: int = 0) -> Any:
    """A value as a configuration states it: plain, or the path of a class with the arguments of its object.

    Arguments of an object that is not `Stated` are read from the attributes of their names, but for objects of
    libraries. What can't be told is `UNTOLD`.
    """
    depth += 1
    if isinstance(value, str) and len(value) >= SECRET:
        return _without_secret(value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return _told(value.items(), depth) if len(value) <= LONGEST else UNTOLD
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)  # the order of texts in a set is another in each process
    if isinstance(value, (list, tuple)):
        return [*_told(enumerate(value), depth).values()] if len(value) <= LONGEST else UNTOLD
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (torch.Tensor, torch.nn.Parameter)):
        return UNTOLD
    if isinstance(value, partial):
        return {"class_path": import_path(value.func), "init_args": described(value.keywords, depth)}
    if isinstance(value, type) or inspect.isroutine(value):
        return import_path(value)
    kept = getattr(value, GIVEN, None)
    if not isinstance(kept, dict):
        if depth > DEEPEST or not _is_walked(type(value)):
            return import_path(type(value))
        kept = _told(((name, _attribute(value, name)) for name in _parameters(type(value))), depth)
    # A configuration names no classes of data, such as an objective's.
    return kept if is_dataclass(value) else {"class_path": import_path(type(value)), "init_args": kept}


def _without_secret(text: str) -> str:
    """The text; for a value of the environment, which may be a secret, what a command writes of it."""
    names = sorted(name for name, value in os.environ.items() if value == text)
    return with_hash(f"${{oc.env:{names[0]}}}", text) if names else text


def described_optimizer(make_optimizer: Any, make_scheduler: Any) -> dict[str, Any]:
    """The optimizer and scheduler that two functions (or lambdas) make, as classes with all settings."""
    told: dict[str, Any] = {"optimizer": None, "lr_scheduler": None}
    with suppress(Exception):  # a function of parameters of its own kind, whose code has a fingerprint
        optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))])
        told["optimizer"] = {"class_path": import_path(type(optimizer)), "init_args": _told(optimizer.defaults.items())}
        if make_scheduler is not None:
            scheduler = make_scheduler(optimizer)
            names = [name for name in _parameters(type(scheduler)) if name != "optimizer"]
            kept = _told((name, _attribute(scheduler, name)) for name in names)
            told["lr_scheduler"] = {"class_path": import_path(type(scheduler)), "init_args": kept}
    return told


def _is_walked(kind: type) -> bool:
    """True for classes of the user's own, of this distribution, and of Lightning and PyTorch."""
    package = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    installed = file is not None and "site-packages" in file
    return package in (*PACKAGES, "lightning", "torch") or not installed


def _told(items: Iterable[tuple[Any, Any]], depth: int = 0) -> dict[str, Any]:
    parts = ((str(name), UNTOLD if part is UNTOLD else described(part, depth)) for name, part in items)
    return {name: part for name, part in parts if part is not UNTOLD}


def _arguments(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class by name, with the defaults of its bases, too."""
    given: dict[str, Any] = {}
    with suppress(TypeError, ValueError):  # a copy, or a call that fails
        bound = inspect.signature(kind.__init__).bind(None, *args, **kwargs)  # type: ignore[misc]
        for name, value in [*bound.arguments.items()][1:]:
            further = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given |= value if further else {name: value}
        given = {
            name: part.default for name, part in _parameters(kind).items() if part.default is not part.empty
        } | given
    return _told(given.items())


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """A class's arguments; those of its bases, too, if it hands further ones on."""
    found: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base is object or ("__init__" not in vars(base) and not is_dataclass(base)):
            continue
        parameters = [*inspect.signature(base.__init__).parameters.values()][1:]  # type: ignore[misc]
        for part in parameters:
            if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD):
                found.setdefault(part.name, part)
        if not any(part.kind is part.VAR_KEYWORD for part in parameters):
            break
    return found


def _attribute(thing: Any, name: str) -> Any:
    """The value of an argument that an object keeps under its name, or `UNTOLD`."""
    kept = {**vars(thing), **getattr(thing, "_modules", {})} if hasattr(thing, "__dict__") else {}
    return next((kept[attribute] for attribute in (f"_{name}", name) if attribute in kept), UNTOLD)


def import_path(thing: Any) -> str:
    """The shortest path by which a class or function is imported."""
    module, name = str(getattr(thing, "__module__", "")), str(getattr(thing, "__qualname__", type(thing).__name__))
    for package in _above(module):
        if getattr(sys.modules.get(package), name, None) is thing:
            return f"{package}.{name}"
    return f"{module}.{name}"


def _above(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))
