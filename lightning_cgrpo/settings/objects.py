"""Settings of a run from Python: the arguments that its objects were made with, by the keys of a configuration."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
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
        instance = super().__new__(cls)
        # Not by the object's own method, because a module is not initialized yet.
        object.__setattr__(instance, GIVEN, _state_arguments(cls, args, kwargs))
        return instance


def described(value: Any, depth: int = 0) -> Any:
    """A value as a configuration states it: plain, or the path of a class with the arguments of its object.

    Arguments of an object that is not `Stated` are read from the attributes of their names, except for objects of
    libraries. A value that a configuration can't state is `UNTOLD`.
    """
    depth += 1
    if isinstance(value, str) and len(value) >= SECRET:
        return _without_secret(value)
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return _describe_items(value.items(), depth) if len(value) <= LONGEST else UNTOLD
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)  # the order of texts in a set is another in each process
    if isinstance(value, (list, tuple)):
        return [*_describe_items(enumerate(value), depth).values()] if len(value) <= LONGEST else UNTOLD
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (torch.Tensor, torch.nn.Parameter)):
        return UNTOLD
    if isinstance(value, partial):
        return {"class_path": import_path(value.func), "init_args": described(value.keywords, depth)}
    if isinstance(value, type) or inspect.isroutine(value):
        return import_path(value)
    arguments = getattr(value, GIVEN, None)
    if not isinstance(arguments, dict):
        if depth > DEEPEST or not _is_walked(type(value)):
            return import_path(type(value))
        attributes = [(name, _kept_argument(value, name)) for name in _list_parameters(type(value))]
        arguments = _describe_items(attributes, depth)
    if is_dataclass(value):  # A configuration names no classes of data, such as an objective's.
        return arguments
    return {"class_path": import_path(type(value)), "init_args": arguments}


def _without_secret(text: str) -> str:
    """The text; for a value of the environment, which may be a secret, the variable's name and a short hash."""
    names = [name for name, value in os.environ.items() if value == text]
    return with_hash(f"${{oc.env:{min(names)}}}", text) if names else text


def described_optimizer(make_optimizer: Any, make_scheduler: Any) -> dict[str, Any]:
    """The optimizer and scheduler that two functions (or lambdas) make, as classes with all settings."""
    settings: dict[str, Any] = {"optimizer": None, "lr_scheduler": None}
    with suppress(Exception):  # a function of parameters of its own kind, whose code has a fingerprint
        optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))])
        arguments = _describe_items(optimizer.defaults.items())
        settings["optimizer"] = {"class_path": import_path(type(optimizer)), "init_args": arguments}
        if make_scheduler is not None:
            scheduler = make_scheduler(optimizer)
            names = [name for name in _list_parameters(type(scheduler)) if name != "optimizer"]
            arguments = _describe_items((name, _kept_argument(scheduler, name)) for name in names)
            settings["lr_scheduler"] = {"class_path": import_path(type(scheduler)), "init_args": arguments}
    return settings


def _is_walked(kind: type) -> bool:
    """True for classes of the user's own, of this distribution, and of Lightning and PyTorch."""
    package = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    installed = file is not None and "site-packages" in file
    return package in (*PACKAGES, "lightning", "torch") or not installed


def _describe_items(items: Iterable[tuple[Any, Any]], depth: int = 0) -> dict[str, Any]:
    """The described values by name, without the values that can't be stated."""
    descriptions = {}
    for name, value in items:
        description = UNTOLD if value is UNTOLD else described(value, depth)
        if description is not UNTOLD:
            descriptions[str(name)] = description
    return descriptions


def _state_arguments(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class by name, with the defaults of its bases, too."""
    arguments: dict[str, Any] = {}
    with suppress(TypeError, ValueError):  # a copy, or a call that fails
        bound = inspect.signature(kind.__init__).bind(None, *args, **kwargs)  # type: ignore[misc]
        for name, value in [*bound.arguments.items()][1:]:  # without self
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= value
            else:
                arguments[name] = value
        defaults = {}
        for name, parameter in _list_parameters(kind).items():
            if parameter.default is not parameter.empty:
                defaults[name] = parameter.default
        arguments = defaults | arguments
    return _describe_items(arguments.items())


def _list_parameters(kind: type) -> dict[str, inspect.Parameter]:
    """A class's arguments, and its bases' if it passes further arguments on."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__:
        if base is object or ("__init__" not in vars(base) and not is_dataclass(base)):
            continue
        own = [*inspect.signature(base.__init__).parameters.values()][1:]  # type: ignore[misc]
        for part in own:
            if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD):
                parameters.setdefault(part.name, part)
        if not any(part.kind is part.VAR_KEYWORD for part in own):
            break
    return parameters


def _kept_argument(thing: Any, name: str) -> Any:
    """The value of an argument that an object keeps under its name, or `UNTOLD`."""
    if not hasattr(thing, "__dict__"):
        return UNTOLD
    attributes = {**vars(thing), **getattr(thing, "_modules", {})}
    for attribute in (f"_{name}", name):
        if attribute in attributes:
            return attributes[attribute]
    return UNTOLD


def import_path(thing: Any) -> str:
    """The shortest path by which a class or function is imported."""
    module = str(getattr(thing, "__module__", ""))
    name = str(getattr(thing, "__qualname__", type(thing).__name__))
    parts = module.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if getattr(sys.modules.get(package), name, None) is thing:
            return f"{package}.{name}"
    return f"{module}.{name}"
