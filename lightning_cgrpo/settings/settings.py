"""The settings of a run, by dotted key, with every default."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_cgrpo.settings.effects import NUMBERLESS, effect_of, only_shows
from lightning_cgrpo.settings.signatures import PACKAGES

Settings = dict[str, Any]
"""Plain values by key, such as ``model.optimization.kl_weight``; a class's key holds its path."""

UNSET = "unset"
MADE = "made"
"""The key that marks a run from Python, whose trainer and callbacks have other keys than a configuration's."""


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings of a merged configuration, without those that change no number.

    Example:
        >>> model = {"class_path": "Net", "init_args": {"width": 8}}
        >>> settings_of({"model": model, "trainer": {"max_steps": 5, "logger": True}})
        {'model': 'Net', 'model.width': 8, 'trainer.max_steps': 5}
    """
    return {key: value for key, value in _list_leaves(config, "") if not is_numberless(key)}


def _list_leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """All settings at a key and below it: class paths, and plain values, with their dotted keys."""
    if isinstance(value, Mapping) and "class_path" in value:
        name = str(value["class_path"])
        if key.startswith("callbacks.") and only_shows(name):
            return
        yield key, name
        for part in ("init_args", "dict_kwargs"):
            if value.get(part):
                yield from _list_leaves(value[part], key)
    elif isinstance(value, Mapping):
        if not value and key:
            yield key, {}
        for name, part in value.items():
            below = f"{key}.{name}" if key else str(name)
            yield from _list_leaves(part, below)
    elif isinstance(value, (list, tuple)) and any(isinstance(part, Mapping) for part in value):
        for number, part in enumerate(value):
            yield from _list_leaves(part, f"{key}.{number}")
    else:
        # Through JSON, because a parser's own kinds of numbers and paths are no plain values.
        yield key, json.loads(json.dumps(value, default=str))


def import_paths(settings: Settings) -> list[str]:
    """Texts in settings that may lead to code: ``module.NAME``, or ``module:NAME``, as Gymnasium names worlds."""
    texts = _list_texts([*settings.values()])
    return [text.partition(":")[0] for text in texts if "." in text or ":" in text]


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _list_texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _list_texts(part)


def with_hash(text: str, value: Any) -> str:
    """A text for a value that may be a secret, with two bytes of its hash, too few to guess the value."""
    # The text counts, so that equal secrets under other names do not look equal.
    digest = hashlib.blake2b(f"{text} {value}".encode("utf-8", "surrogatepass"), digest_size=2)
    return f"{text} ({digest.hexdigest()})"


def is_numberless(key: str) -> bool:
    """True for settings that change no number of a training run."""
    return effect_of(key) in NUMBERLESS


def differing(before: Settings, now: Settings) -> dict[str, tuple[Any, Any]]:
    """The values before and now of each setting that differs, `UNSET` where there is none.

    Arguments of a class that differs are left out, because they belong to the one class or the other.

    Example:
        >>> differing({"opt": "SGD", "opt.momentum": 0.9, "kl": 0.02}, {"opt": "Adam", "opt.eps": 1e-8})
        {'opt': ('SGD', 'Adam'), 'kl': (0.02, 'unset')}
    """
    differences: dict[str, tuple[Any, Any]] = {}
    keys = list(dict.fromkeys([*before, *now]))
    if before.get(MADE) != now.get(MADE):
        keys = [key for key in keys if key.startswith(("model", "data"))]
    for key in keys:
        old = before.get(key, UNSET)
        new = now.get(key, UNSET)
        # The nearest key above that differs, if any: a class comes before its arguments.
        above = key
        while above not in differences and "." in above:
            above = above.rpartition(".")[0]
        if above not in differences and not _are_equal(old, new):
            differences[key] = old, new
    return differences


def _are_equal(before: Any, now: Any) -> bool:
    if (before is None and now == UNSET) or (now is None and before == UNSET):
        return True  # an argument that a newer version knows, and that is not used
    if _is_shipped(before) and _is_shipped(now):
        return bool(before.rpartition(".")[2] == now.rpartition(".")[2])  # a shipped class, whose module may have moved
    # 1 and 1.0 are the same setting, 1 and True are not.
    return bool(before == now) and isinstance(before, bool) == isinstance(now, bool)


def _is_shipped(value: Any) -> bool:
    return isinstance(value, str) and value.partition(".")[0] in PACKAGES
