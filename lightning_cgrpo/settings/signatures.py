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
        values_type: of X in ``dict[str, X]``.
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
    located = _locate(class_path)
    if located is None:
        return None
    module, node = located
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs][1:]
            parameters = {a.arg: _parameter(a.annotation, module) for a in arguments}
            # Other packages have several base classes.
            base = _base(module, node) if module.name.startswith(PACKAGES) and _passes_on(item) else None
            if base is None:
                return Signature(parameters, item.args.kwarg is not None)
            return Signature(parameters | {n: p for n, p in base.parameters.items() if n not in parameters}, base.open)
    if _is_dataclass(node):
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
        bases = (signature_of(module.names.get(ast.unparse(base), "")) for base in node.bases)
        inherited = {name: parameter for base in bases if base for name, parameter in base.parameters.items()}
        declared = {ast.unparse(f.target): _parameter(f.annotation, module) for f in fields}
        return Signature(inherited | declared)
    unknown = any(ast.unparse(base) not in ("ABC", "object") for base in node.bases)
    return _base(module, node) or (None if unknown else Signature())


def _passes_on(constructor: ast.FunctionDef) -> bool:
    """True if the constructor passes its ``**kwargs`` on to the base class's."""
    calls = [call for call in ast.walk(constructor) if isinstance(call, ast.Call)]
    return any(
        ast.unparse(call.func) == "super().__init__" and any(keyword.arg is None for keyword in call.keywords)
        for call in calls
    )


def _base(module: _Module, node: ast.ClassDef) -> Signature | None:
    """The constructor of the first base class in this package."""
    signatures = (signature_of(module.names.get(ast.unparse(base), "")) for base in node.bases)
    return next((signature for signature in signatures if signature is not None), None)


def is_there(class_path: str) -> bool:
    """True for a class whose source is found."""
    return _locate(class_path) is not None


def constant_of(class_path: str, name: str) -> Any:
    """The value that the body of a class, or else of a base class, assigns to a name; None without."""
    located = _locate(class_path)
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
    """The names in the module of a class of `PACKAGES` that is not there; None for a class that is, or of others."""
    module_name = class_path.rpartition(".")[0]
    module = _module(module_name) if module_name.partition(".")[0] in PACKAGES else None
    return None if module is None or _locate(class_path) is not None else list(module.names)


@dataclass(frozen=True)
class _Module:
    name: str
    names: dict[str, str]
    classes: dict[str, ast.ClassDef]


@cache
def _module(name: str) -> _Module | None:
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
    except SyntaxError:  # which the import tells, with its place
        return None
    names: dict[str, str] = {}
    for alias, path in _names(name, tree):
        names.setdefault(alias, path)
    classes: dict[str, ast.ClassDef] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
    return _Module(name, names, classes)


def _names(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            yield node.name, f"{module}.{node.name}"
        elif isinstance(node, ast.Dict):  # The table of lazily imported names in lightning_cgrpo/__init__.py.
            for key, value in zip(node.keys, node.values, strict=True):
                name, place = (part.value if isinstance(part, ast.Constant) else None for part in (key, value))
                if isinstance(name, str) and isinstance(place, str):
                    yield name, f"{place}.{name}"


def _locate(class_path: str) -> tuple[_Module, ast.ClassDef] | None:
    module_name, _, name = class_path.rpartition(".")
    if not module_name:
        places = (_locate(f"{namespace}.{name}") for namespace in NAMESPACES)
        return next((place for place in places if place is not None), None)
    module = _module(module_name)
    if module is None:
        return None
    if name in module.classes:
        return module, module.classes[name]
    target = module.names.get(name, class_path)
    return _locate(target) if target != class_path else None


def _parameter(annotation: ast.expr | None, module: _Module) -> Parameter:
    parameter = Parameter()
    for part in _alternatives(annotation):
        if isinstance(part, ast.Name):
            parameter.type = parameter.type or _dataclass_path(part.id, module)
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple):
            value = part.slice.elts[-1]
            if ast.unparse(part.value) == "dict" and isinstance(value, ast.Name):
                parameter.values_type = _dataclass_path(value.id, module)
    return parameter


def _alternatives(annotation: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from _alternatives(annotation.left)
        yield from _alternatives(annotation.right)
    elif annotation is not None:
        yield annotation


def _dataclass_path(name: str, module: _Module) -> str | None:
    path = module.names.get(name, "")
    located = _locate(path) if path.startswith(PACKAGES) else None
    return path if located is not None and _is_dataclass(located[1]) else None


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
