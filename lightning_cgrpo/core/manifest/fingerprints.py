"""Fingerprints of prompts, of code and of files: equal for equal content."""

from __future__ import annotations

import ast
import marshal
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIBRARIES = tuple(str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "purelib", "platlib"))
PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
"""This distribution, whose version tells its code."""


def prompt_fingerprints(rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Two fingerprints of each row of columns, ``[N, 2]`` int64: of all columns, and of the prompt alone.

    Spaces at the ends of a prompt, which chat templates trim, do not count.
    """
    digests = bytearray()
    for row in rows:
        digests += blake2b(_bytes(row), digest_size=8).digest()
        digests += blake2b(_prompt_bytes(row.get("prompt", row)), digest_size=8).digest()
    return torch.from_numpy(np.frombuffer(bytes(digests), dtype="<i8").reshape(-1, 2).copy())


def _bytes(value: Any) -> bytes:
    try:
        return marshal.dumps(value, 2)  # several times faster than JSON; version 2 depends on the content alone
    except ValueError:  # a value of a library, such as an image or a date
        return repr(value).encode("utf-8", "surrogatepass")


def _prompt_bytes(prompt: Any) -> bytes:
    if isinstance(prompt, str):
        return prompt.strip().encode("utf-8", "surrogatepass")
    if isinstance(prompt, list):
        return _bytes([_trimmed(message) for message in prompt])
    return _bytes(prompt)


def _trimmed(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    return [(name, part.strip() if isinstance(part, str) else part) for name, part in sorted(message.items())]


def code_fingerprints(paths: Iterable[str]) -> dict[str, str]:
    """The fingerprint of each module of the user's own that import paths lead to, by name.

    Modules that these import count too, as far as they are no libraries. Comments, docstrings and layout do not count.
    """
    found: dict[str, str] = {}
    waiting = sorted(set(paths))
    while waiting:
        name, file = _module_of(waiting.pop())
        if file is None or name in found:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # the import tells
        waiting += sorted(set(_imports(tree)))
        found[name] = _tree_fingerprint(tree)
    return dict(sorted(found.items()))


def _module_of(path: str) -> tuple[str, Path | None]:
    """The module that an import path of a module, class or function lies in, and its file, if it is the user's own."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts) or parts[0] in (*PACKAGES, *sys.builtin_module_names):
        return "", None
    spec = PathFinder.find_spec(parts[0])
    if spec is None or not spec.origin or spec.origin.startswith(LIBRARIES) or "site-packages" in spec.origin:
        return "", None
    file = Path(spec.origin)
    name = parts[0]
    for part in parts[1:]:
        if file.name != "__init__.py":  # the rest names a class or function in the module
            break
        inner = file.parent / part / "__init__.py"
        if not inner.is_file():
            inner = file.parent / f"{part}.py"
        if not inner.is_file():
            break
        file = inner
        name = f"{name}.{part}"
    return (name, file) if file.suffix == ".py" and file.is_file() else ("", None)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _tree_fingerprint(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Texts that are statements are docstrings or comments.
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return blake2b(ast.dump(tree).encode(), digest_size=8).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def file_fingerprints(folder: Path) -> dict[str, str]:
    """Fingerprints of the small files of a model's directory: configuration, tokenizer, chat template."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".jinja", ".model", ".txt")]
    return {file.name: blake2b(file.read_bytes(), digest_size=8).hexdigest() for file in files if file.is_file()}
