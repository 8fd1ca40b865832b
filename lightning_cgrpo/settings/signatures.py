"""Parameters and constants of classes, read from source files, because importing Lightning takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
"""Packages whose classes are known."""
NAMESPACES = (
    "lightning_cgrpo",
    "lightning_cgrpo.callbacks",
    "lightning_cgrpo.datamodules",
    "lightning_cgrpo.multipliers",
    "lightning_cgrpo.tasks.gridworld",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
)
"""Modules in which a class is looked up by its name alone."""
VALUES = (ast.Constant, ast.Tuple, ast.List, ast.Set)
"""Expressions of constants."""


@dataclass
class Parameter:
    """A constructor's parameter.

    Args:
        type: path of the annotation's dataclass, if any.
        values_type: path of the dataclass X in ``dict[str, X]``.
    """

    type: str | None = None
    values_type: str | None = None


@dataclass
class Signature:
    """A constructor's parameters; `open` if it takes ``**kwargs``."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    open: bool = False


@cache
def signature_of(class_path: str) -> Signature | None:
    """The constructor's parameters, from its source file; None if not found."""
    located = _locate_class(class_path)
    if located is None:
        return None
    module, node = located
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _constructor_signature(item, module, node)
    if _is_dataclass(node):
        return _dataclass_signature(module, node)
    # A class without a constructor has its base's.
    base = _base_signature(module, node)
    if base is not None:
        return base
    unknown = any(ast.unparse(base) not in ("ABC", "object") for base in node.bases)
    return None if unknown else Signature()


def _constructor_signature(constructor: ast.FunctionDef, module: _Module, node: ast.ClassDef) -> Signature:
    """The parameters of a class's own constructor, and of its base's if it passes further arguments on."""
    written = constructor.args
    arguments = [*written.posonlyargs, *written.args, *written.kwonlyargs][1:]  # without self
    parameters = {argument.arg: _read_parameter(argument.annotation, module) for argument in arguments}
    base = None
    # Classes of other packages have several base classes.
    if module.name.startswith(PACKAGES) and _passes_kwargs_on(constructor):
        base = _base_signature(module, node)
    if base is None:
        return Signature(parameters, written.kwarg is not None)
    for name, parameter in base.parameters.items():
        parameters.setdefault(name, parameter)
    return Signature(parameters, base.open)


def _dataclass_signature(module: _Module, node: ast.ClassDef) -> Signature:
    """The fields of a dataclass, after those of its bases."""
    parameters: dict[str, Parameter] = {}
    for base_node in node.bases:
        base = signature_of(module.names.get(ast.unparse(base_node), ""))
        if base is not None:
            parameters |= base.parameters
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            parameters[item.target.id] = _read_parameter(item.annotation, module)
    return Signature(parameters)


def _passes_kwargs_on(constructor: ast.FunctionDef) -> bool:
    """True if the constructor passes its ``**kwargs`` on to the base class's."""
    keywords: list[ast.keyword] = []
    for call in ast.walk(constructor):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__":
            keywords += call.keywords
    return any(keyword.arg is None for keyword in keywords)  # **kwargs has no name


def _base_signature(module: _Module, node: ast.ClassDef) -> Signature | None:
    """The constructor of the first base class in this package."""
    for base in node.bases:
        signature = signature_of(module.names.get(ast.unparse(base), ""))
        if signature is not None:
            return signature
    return None


def is_there(class_path: str) -> bool:
    """True for a class whose source is found."""
    return _locate_class(class_path) is not None


def constant_of(class_path: str, name: str) -> Any:
    """The value that the body of a class, or else of a base class, assigns to a name; None without."""
    located = _locate_class(class_path)
    if located is None:
        return None
    module, node = located
    for item in node.body:
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and isinstance(item.value, VALUES):
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            if ast.unparse(target) == name:
                with suppress(ValueError):  # a container of names
                    return ast.literal_eval(item.value)
    for base in node.bases:
        value = constant_of(module.names.get(ast.unparse(base), ""), name)
        if value is not None:
            return value
    return None


def names_beside_missing(class_path: str) -> list[str] | None:
    """The names in the module of a class that `PACKAGES` lack; None for a class that is there, or of other packages."""
    module_name = class_path.rpartition(".")[0]
    if module_name.partition(".")[0] not in PACKAGES:
        return None
    module = _read_module(module_name)
    if module is None or is_there(class_path):
        return None
    return list(module.names)


@dataclass(frozen=True)
class _Module:
    """A module's own classes, and the paths of the names that it imports or declares."""

    name: str
    names: dict[str, str]
    classes: dict[str, ast.ClassDef]


@cache
def _read_module(name: str) -> _Module | None:
    """A module from its source file; None if not found."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    if rest:
        place = file.parent.joinpath(*rest)
        file = place / "__init__.py" if (place / "__init__.py").is_file() else place.with_suffix(".py")
    if not file.is_file() or file.suffix != ".py":
        return None
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # the import reports it, with its place
        return None
    names: dict[str, str] = {}
    for alias, path in _list_names(name, tree):
        names.setdefault(alias, path)
    classes: dict[str, ast.ClassDef] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
    return _Module(name, names, classes)


def _list_names(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names of a module's imports and classes, with their paths."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.ClassDef):
            yield node.name, f"{module}.{node.name}"
        elif isinstance(node, ast.Dict):  # The table of lazily imported names in lightning_cgrpo/__init__.py.
            for key, value in zip(node.keys, node.values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(value, ast.Constant):
                    continue
                if isinstance(key.value, str) and isinstance(value.value, str):
                    yield key.value, f"{value.value}.{key.value}"


def _locate_class(class_path: str) -> tuple[_Module, ast.ClassDef] | None:
    """The module that declares a class, and the class's node; names are followed through imports."""
    module_name, _, name = class_path.rpartition(".")
    if not module_name:
        for namespace in NAMESPACES:
            located = _locate_class(f"{namespace}.{name}")
            if located is not None:
                return located
        return None
    module = _read_module(module_name)
    if module is None:
        return None
    if name in module.classes:
        return module, module.classes[name]
    target = module.names.get(name, class_path)
    return _locate_class(target) if target != class_path else None


def _read_parameter(annotation: ast.expr | None, module: _Module) -> Parameter:
    """The dataclasses that an annotation names: ``X``, ``X | None`` or ``dict[str, X]``."""
    parameter = Parameter()
    for part in _split_union(annotation):
        if isinstance(part, ast.Name):
            parameter.type = parameter.type or _dataclass_path(part.id, module)
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple):
            value = part.slice.elts[-1]
            if ast.unparse(part.value) == "dict" and isinstance(value, ast.Name):
                parameter.values_type = _dataclass_path(value.id, module)
    return parameter


def _split_union(annotation: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from _split_union(annotation.left)
        yield from _split_union(annotation.right)
    elif annotation is not None:
        yield annotation


def _dataclass_path(name: str, module: _Module) -> str | None:
    """The path of a name in a module, if it is a dataclass of `PACKAGES`."""
    path = module.names.get(name, "")
    if not path.startswith(PACKAGES):
        return None
    located = _locate_class(path)
    if located is None:
        return None
    _, node = located
    return path if _is_dataclass(node) else None


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
