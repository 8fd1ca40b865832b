"""Checks a configuration's keys against the signatures of the classes it names, reading their source only.

Importing Lightning takes seconds; a misspelled key is answered without.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import CLASS_KEYS, Config, ConfigError, is_class
from lightning_cgrpo.errors import did_you_mean

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
NAMESPACES = (
    "lightning_cgrpo",
    "lightning_cgrpo.callbacks",
    "lightning_cgrpo.datamodules",
    "lightning_cgrpo.multipliers",
    "lightning_cgrpo.tasks.gridworld",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
)
"""Where a class is looked for that is given by its name alone."""
INSTEAD = {
    "gradient_clip_val": (None, "gradients are clipped by model.optimization.max_grad_norm"),
    "accumulate_grad_batches": (1, "gradients accumulate over a minibatch by model.optimization.micro_batch_size"),
}
"""Settings of the Trainer that Lightning refuses under manual optimization: their default, and what to use."""

ROOT_KEYS = ("seed_everything", "threads", "trainer", "model", "data", "callbacks", "ckpt_path", "weights_only")


@dataclass
class Parameter:
    """A parameter's class, where its annotation names one: of the value itself, or of a mapping's values.

    Attributes:
        required: whether the parameter has no default.
    """

    type: str | None = None
    values_type: str | None = None
    required: bool = False


@dataclass
class Signature:
    """What a class accepts, or that nobody can tell (`**kwargs`)."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    open: bool = False


def check_keys(config: Config, extra: tuple[str, ...] = ()) -> None:
    """Raises:
    ConfigError: for the first key that its class doesn't take, with a suggestion.
    """
    known = (*ROOT_KEYS, *extra)
    for key in config:
        if key not in known:
            section = _section_of(key, config)
            hint = f" It belongs under {section}: ({section}.{key})." if section else did_you_mean(key, known)
            hint = hint or f" Known here: {', '.join(known)}."
            raise ConfigError(f"Unknown key '{key}'.{hint}")
    if isinstance(config.get("trainer"), Mapping):
        for key, (default, instead) in INSTEAD.items():
            if config["trainer"].get(key, default) != default:
                raise ConfigError(f"Expected trainer.{key} to be left alone, since {instead}.")
        _check_arguments("trainer", config["trainer"], TRAINER)
    for key in ("model", "data", "callbacks"):
        _check_value(key, config.get(key), Parameter())


def _section_of(key: str, config: Config) -> str | None:
    """The section whose class takes an argument of this name."""
    for section in ("model", "data", "trainer"):
        value = config.get(section)
        name = value.get("class_path") if isinstance(value, Mapping) else value
        signature = signature_of(TRAINER if section == "trainer" else str(name))
        if signature is not None and key in signature.parameters:
            return section
    return None


def _check_value(where: str, value: Any, parameter: Parameter) -> None:
    if isinstance(value, Mapping) and "class_path" in value:
        _check_class(where, str(value["class_path"]))
        for key in value:
            if key not in CLASS_KEYS:
                hint = did_you_mean(str(key), CLASS_KEYS) or " Arguments of the class belong under init_args."
                raise ConfigError(f"Unknown key '{key}' in {where}, beside class_path.{hint}")
        arguments = value.get("init_args") or {}
        if isinstance(arguments, Mapping):
            _check_required(where, arguments, str(value["class_path"]))
            _check_arguments(where, arguments, str(value["class_path"]))
    elif isinstance(value, str) and is_class(value):
        _check_required(where, {}, value)
    elif isinstance(value, Mapping) and parameter.type is not None:
        _check_arguments(where, value, parameter.type)
    elif parameter.type is not None and isinstance(value, (bool, int, float, list)):
        signature = signature_of(parameter.type)
        names = ", ".join(signature.parameters) if signature is not None else ""
        raise ConfigError(f"Expected {where} to be settings ({names}), but got {value}, try --{where}={{}}.")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_value(f"{where}.{key}", item, Parameter(type=parameter.values_type))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_value(f"{where}[{number}]", item, Parameter())


def _check_arguments(where: str, arguments: Mapping[str, Any], class_path: str) -> None:
    signature = signature_of(class_path)
    if signature is None:
        return
    for key, value in arguments.items():
        if key not in signature.parameters and not signature.open:
            name = class_path.rpartition(".")[2]
            takes = f" It takes: {', '.join(signature.parameters) or 'nothing'}."
            hint = did_you_mean(str(key), [*signature.parameters, *CLASS_KEYS]) or takes
            raise ConfigError(f"Unknown key '{key}' in {where} ({name}).{hint}")
        _check_value(f"{where}.{key}", value, signature.parameters.get(key, Parameter()))


def _check_required(where: str, arguments: Mapping[str, Any], class_path: str) -> None:
    """Of this package's classes alone: those of libraries may be given arguments by the program, as optimizers are."""
    located = _locate(class_path)
    signature = signature_of(class_path)
    if located is None or signature is None or not located[0].name.startswith("lightning_cgrpo"):
        return
    missing = [name for name, parameter in signature.parameters.items() if parameter.required and name not in arguments]
    if missing:
        name = class_path.rpartition(".")[2]
        raise ConfigError(f"Expected {where} ({name}) to have {', '.join(missing)}, try --{where}.{missing[0]}=VALUE.")


def _check_class(where: str, class_path: str) -> None:
    """Of this package's modules all names are known."""
    module_name, _, name = class_path.rpartition(".")
    module = _module(module_name) if module_name.partition(".")[0] == "lightning_cgrpo" else None
    if module is not None and _locate(class_path) is None:
        raise ConfigError(f"There is no class '{class_path}' for {where}.{did_you_mean(name, _names(module))}")


@cache
def signature_of(class_path: str) -> Signature | None:
    """The constructor's signature, or None where the source can't be found without importing."""
    located = _locate(class_path)
    if located is None:
        return None
    module, node = located
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            positional = [*item.args.posonlyargs, *item.args.args]
            defaults = [*[None] * (len(positional) - len(item.args.defaults)), *item.args.defaults]
            pairs = list(zip(positional, defaults, strict=True))[1:]
            pairs += zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
            parameters = {a.arg: _parameter(a.annotation, module, default is None) for a, default in pairs}
            return Signature(parameters, item.args.kwarg is not None)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
        known = [signature_of(_absolute(ast.unparse(base), module) or "") for base in node.bases]
        parameters = {name: parameter for base in known if base for name, parameter in base.parameters.items()}
        own = {ast.unparse(f.target): _parameter(f.annotation, module, f.value is None) for f in fields}
        return Signature(parameters | own)
    bases = [base for base in node.bases if ast.unparse(base) not in ("ABC", "object")]
    for base in bases:
        inherited = signature_of(_absolute(ast.unparse(base), module) or "")
        if inherited is not None:
            return inherited
    return Signature() if not bases else None


@dataclass(frozen=True)
class _Module:
    name: str
    is_package: bool
    tree: ast.Module


@cache
def _module(name: str) -> _Module | None:
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*rest) if rest else Path(spec.origin)
    package = not rest or (path / "__init__.py").is_file()
    file = path if not rest else (path / "__init__.py" if package else path.with_suffix(".py"))
    if not file.is_file() or file.suffix != ".py":
        return None
    return _Module(name, package, ast.parse(file.read_bytes()))


def _locate(class_path: str) -> tuple[_Module, ast.ClassDef] | None:
    module_name, _, name = class_path.rpartition(".")
    if not module_name:
        found = (_locate(f"{namespace}.{name}") for namespace in NAMESPACES)
        return next((place for place in found if place is not None), None)
    module = _module(module_name)
    if module is None:
        return None
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
    target = _absolute(name, module)
    return _locate(target) if target is not None and target != class_path else None


def _absolute(name: str, module: _Module) -> str | None:
    """The full path of a name as it is used in a module: defined there, or imported."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return f"{node.module}.{alias.name}"
        # The table of lazily imported names in lightning_cgrpo/__init__.py.
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                place = value.value if isinstance(value, ast.Constant) else None
                if isinstance(key, ast.Constant) and key.value == name and isinstance(place, str):
                    return f"{place}.{name}"
        if isinstance(node, ast.ClassDef) and node.name == name:
            return f"{module.name}.{name}"
    return None


def _names(module: _Module) -> Iterator[str]:
    """Names that `_absolute` finds."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Dict):
            keys = (key.value for key in node.keys if isinstance(key, ast.Constant))
            yield from (key for key in keys if isinstance(key, str))
        elif isinstance(node, ast.ClassDef):
            yield node.name


def _parameter(annotation: ast.expr | None, module: _Module, required: bool) -> Parameter:
    """Classes of this package that an annotation names: ``X``, ``X | None``, ``dict[str, X]``."""
    parameter = Parameter(required=required)
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
    path = _absolute(name, module)
    located = _locate(path) if path and path.startswith("lightning_cgrpo.") else None
    if located is None or not any("dataclass" in ast.unparse(d) for d in located[1].decorator_list):
        return None
    return path
