"""Labels of methods, from their configurations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_cgrpo.cli.configuration import get, short_class
from lightning_cgrpo.cli.method import Method
from lightning_cgrpo.objective.constraint import BOUNDS, Constraint

CONSTRAINTS = "model.init_args.objective.constraints"
ESTIMATOR = "model.init_args.estimator"
TASK = "model.init_args.task"
LAGRANGIAN, FIXED = "callbacks.LagrangianCallback", "callbacks.FixedWeights"
FIXED_WORD = "fixed"
SILENT = ("class_path", "init_args", "model", "callbacks")
"""Path parts omitted from a setting's name."""


@dataclass(frozen=True)
class Aspect:
    """A possible difference between methods.

    Args:
        path: of the setting, with dots.
        holder: ``path:Class`` of the object with this setting; only its methods are compared. Empty for all.
    """

    path: str
    holder: str = ""


def labels_of(methods: Sequence[Method]) -> list[str]:
    """Unique labels of different methods.

    A label lists differing aspects: estimator, constraints, weights, other settings. Parts that most methods share are
    omitted, except the estimator.
    """
    described = [dict(_aspects(method)) for method in methods]
    holders = [
        {"", *(_holder(aspect.path, v) for aspect, v in _settings(method) if _is_class(v))} for method in methods
    ]
    rows: list[list[tuple[str, bool]]] = [[] for _ in methods]
    for aspect in dict.fromkeys(aspect for aspects in described for aspect in aspects):
        having = [n for n, held in enumerate(holders) if aspect.holder in held]
        texts = {n: described[n].get(aspect, "") for n in having}
        if len(set(texts.values())) < 2:
            continue
        usual = None if aspect.path == ESTIMATOR else _usual(list(texts.values()))
        for n, text in texts.items():
            rows[n].append((text or f"without {aspect.path.rpartition('.')[2]}", text == usual))
    plain = [short_class(get(method, ESTIMATOR)) or "run" for method in methods]
    short = [", ".join(text for text, is_usual in row if not is_usual) for row in rows]
    full = [", ".join(text for text, _ in row) for row in rows]
    # For the most usual method, whose short label is empty.
    said = [", ".join(text for text, _ in row if not text.startswith("without ")) for row in rows]
    labels = [s or a or p for s, a, p in zip(short, said, plain, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [text or p for text, p in zip(full, plain, strict=True)]
    return numbered(labels)


def slug(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.")[:80] or "run"


def numbered(labels: Sequence[str]) -> list[str]:
    """Labels, with equal labels numbered."""
    counts, seen, unique = Counter(labels), Counter[str](), []
    for label in labels:
        seen[label] += 1
        unique.append(label if counts[label] == 1 else f"{label} #{seen[label]}")
    return unique


def _usual(texts: Sequence[str]) -> str | None:
    """Text that at least three methods and more than half share; never fixed weights."""
    text, count = Counter(texts).most_common(1)[0]
    return text if count > 2 and 2 * count > len(texts) and not text.startswith(FIXED_WORD) else None


def _aspects(method: Method) -> Iterator[tuple[Aspect, str]]:
    yield Aspect(ESTIMATOR), short_class(get(method, ESTIMATOR))
    constraints = get(method, CONSTRAINTS) or {}
    for name, settings in constraints.items():
        if isinstance(settings, Mapping):
            yield Aspect(f"{CONSTRAINTS}.{name}"), _constraint_words(str(name), settings)
            yield Aspect(f"{CONSTRAINTS}.{name}.signal"), f"{name} of {settings.get('signal', name)}"
    yield Aspect("multipliers"), _weights_words(method)
    said = (ESTIMATOR, LAGRANGIAN, f"{LAGRANGIAN}.init_args.controller")
    for aspect, value in _settings(method):
        if aspect.path.startswith((f"{CONSTRAINTS}.", FIXED)) or aspect.path in said:
            continue
        words = [word for word in aspect.path.split(".") if word not in SILENT]
        yield aspect, short_class(value) if _is_class(value) else f"{'.'.join(words[-2:])}={value}"


def _constraint_words(name: str, settings: Mapping[str, Any]) -> str:
    if settings.get("role") == "monitor":
        return f"{name} monitored"
    bounds = [f"{key} {_number(settings[key])}" for key in BOUNDS if key in settings]
    others = [
        f"{key}={value}"
        for key, value in settings.items()
        if key not in (*BOUNDS, "role", "signal") and value != getattr(Constraint, key, None)
    ]
    return " ".join([name, *bounds, *others])


def _weights_words(method: Method) -> str:
    if get(method, LAGRANGIAN) is not None:
        return short_class(get(method, f"{LAGRANGIAN}.init_args.controller"))
    weights = get(method, f"{FIXED}.init_args.weights") or {}
    # Weights of 0 alone only measure the constraints, because the reward keeps its default.
    if get(method, FIXED) is None or (weights and not any(weights.values())):
        return "no multipliers" if get(method, CONSTRAINTS) else ""
    named = [f"{name} {_number(weight)}" for name, weight in weights.items() if (name, weight) != ("reward", 1.0)]
    return f"{FIXED_WORD} " + ", ".join(named or ["reward 1"])


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _is_class(value: Any) -> bool:
    return isinstance(value, Mapping) and "class_path" in value


def _holder(path: str, value: Any) -> str:
    return f"{path}:{short_class(value)}"


def _settings(value: Any, path: str = "", holder: str = "") -> Iterator[tuple[Aspect, Any]]:
    if _is_class(value):
        yield Aspect(path, holder), value
        holder = _holder(path, value)
    if not isinstance(value, Mapping):
        yield Aspect(path, holder), value
        return
    for key, part in value.items():
        if key != "class_path":
            yield from _settings(part, f"{path}.{key}" if path else str(key), holder)
