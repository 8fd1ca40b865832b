"""Check of a configuration's keys against the signatures of its classes.

Signatures are read from source files, because importing Lightning takes seconds.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import CLASS_KEYS, Config, ConfigError, get, short_class
from lightning_cgrpo.core.errors import did_you_mean
from lightning_cgrpo.core.moved import new_path

PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
"""Packages whose classes are checked."""
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
"""Modules in which a class is looked up by its name alone."""
MOVED = {
    "Argoverse2": "examples.scene_sources.argoverse2.Argoverse2",
    "CoVLA": "examples.scene_sources.covla.CoVLA",
    "ExponentiatedGradient": "examples.controllers.exponentiated_gradient.ExponentiatedGradient",
    "NuPI": "examples.controllers.nupi.NuPI",
    "ReferenceSync": "examples.callbacks.reference_sync.ReferenceSync",
    "StepBudget": "examples.callbacks.step_budget.StepBudget",
    "WeightBounds": "examples.controllers.bounded_weights.BoundedWeights",
}
"""Classes that are in `examples` since this version, by name, with their new path."""
NAMES_OF_TRL = {
    "num_generations": "model.group_size",
    "learning_rate": "model.optimizer.lr",
    "temperature": "model.policy.temperature",
    "beta": "model.optimization.kl_weight",
    "epsilon": "model.optimization.clip_low and .clip_high",
    "max_completion_length": "model.sampler.max_new_tokens",
    "per_device_train_batch_size": "data.prompts_per_update",
    "num_train_epochs": "trainer.max_epochs",
}
"""Arguments of TRL, and the keys that replace them."""
ROOT_KEYS = ("seed_everything", "threads", "trainer", "model", "data", "callbacks", "ckpt_path", "weights_only")


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


def check_keys(config: Config, extra: tuple[str, ...] = ()) -> None:
    """Raise a `ConfigError` for an unknown key; `extra` are further top-level keys."""
    allowed = (*ROOT_KEYS, *extra)
    for key in config:
        if key not in allowed:
            section = _section_of(key, config)
            hint = f" It belongs under {section}: ({section}.{key})." if section else did_you_mean(key, allowed)
            hint = _of_trl(key) or hint or f" Known here: {', '.join(allowed)}."
            raise ConfigError(f"Unknown key '{key}'.{hint}")
    seed, threads = config.get("seed_everything"), config.get("threads")
    # Values of environment variables are texts.
    if seed not in (None, True, False) and not (str(seed).isdigit() and int(seed) < 2**32):
        raise ConfigError(f"Expected seed_everything to be from 0 to {2**32 - 1}, but got {seed}, try another seed.")
    if threads is not None and not (str(threads).isdigit() and int(threads) > 0):
        raise ConfigError(f"Expected threads to be a whole number of at least 1, but got {threads}, try threads: 1.")
    for key in ("trainer", "model", "data", "callbacks"):
        text = value.get("class_path") if isinstance(value := config.get(key), Mapping) else value
        if isinstance(text, str) and ":" in text:
            raise ConfigError(f"Expected {key} to be settings, but got '{text}', try a space after the colon.")
    if isinstance(config.get("trainer"), Mapping):
        _check_arguments("trainer", config["trainer"], TRAINER)
        for key in ("max_steps", "max_epochs"):
            if config["trainer"].get(key) == 0:
                raise ConfigError(f"Expected trainer.{key} to be at least 1, or -1 for no limit, but got 0.")
    for key in ("model", "data", "callbacks"):
        _check_value(key, config.get(key), Parameter())


def _section_of(key: str, config: Config) -> str | None:
    for section in ("model", "data", "trainer"):
        name = TRAINER if section == "trainer" else get(config, f"{section}.class_path") or config.get(section)
        signature = signature_of(str(name))
        if signature is not None and key in signature.parameters:
            return section
    return None


def _check_value(where: str, value: Any, parameter: Parameter) -> None:
    path = str(value.get("class_path") if isinstance(value, Mapping) else value)
    if (new := new_path(path)) is not None:
        raise ConfigError(f"Expected {where} to be a class, but {path} has moved, try {new}.")
    if path in MOVED or (path.startswith("lightning_cgrpo.") and short_class(path) in MOVED):
        moved = MOVED[short_class(path)]
        raise ConfigError(f"Expected {where} to be {moved}, because {path} has moved there, try the new path.")
    if isinstance(value, Mapping) and "class_path" in value:
        class_path = str(value["class_path"])
        _check_class(where, class_path)
        for key in value:
            if key not in CLASS_KEYS:
                hint = did_you_mean(str(key), CLASS_KEYS) or " Arguments of the class belong under init_args."
                raise ConfigError(f"Unknown key '{key}' in {where}, beside class_path.{hint}")
        arguments = value.get("init_args") or {}
        if isinstance(arguments, Mapping):
            _check_arguments(where, arguments, class_path)
    elif isinstance(value, Mapping) and parameter.type is not None:
        _check_arguments(where, value, parameter.type)
    elif parameter.type is not None and isinstance(value, (bool, int, float, list)):
        signature = signature_of(parameter.type)
        names = ", ".join(signature.parameters) if signature is not None else ""
        example = "{}" if isinstance(value, (bool, list)) else f"{{{names.partition(',')[0]}: {value}}}"
        raise ConfigError(f"Expected {where} to be settings ({names}), but got {value}, try --{where}='{example}'.")
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
            takes = f" It takes: {', '.join(signature.parameters) or 'nothing'}."
            hint = _of_trl(key) or did_you_mean(str(key), [*signature.parameters, *CLASS_KEYS]) or takes
            raise ConfigError(f"Unknown key '{key}' in {where} ({short_class(class_path)}).{hint}")
        _check_value(f"{where}.{key}", value, signature.parameters.get(key, Parameter()))


def _of_trl(key: Any) -> str:
    """A hint for an argument of TRL; empty for other keys."""
    return f" Try {NAMES_OF_TRL[key]}." if key in NAMES_OF_TRL else ""


def _check_class(where: str, class_path: str) -> None:
    module_name, _, name = class_path.rpartition(".")
    module = _module(module_name) if module_name.partition(".")[0] in PACKAGES else None
    if module is not None and _locate(class_path) is None:
        raise ConfigError(f"There is no class '{class_path}' for {where}.{did_you_mean(name, module.names)}")


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


def constant_of(class_path: str, name: str) -> Any:
    """The value that a class's own body assigns to a name; None without."""
    located = _locate(class_path)
    for item in located[1].body if located is not None else ():
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == name:
            return ast.literal_eval(item.value)
    return None


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
    tree = ast.parse(file.read_bytes())
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
