"""Fingerprints of prompts, of code and of files: equal for equal content."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from hashlib import blake2b, file_digest
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.prompts.fingerprints import record_fingerprints

LIBRARIES = tuple(str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "purelib", "platlib"))
PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
"""This distribution, whose version tells its code."""
SMALL = (".json", ".jinja", ".model", ".txt", ".py")
"""Suffixes of the small files of a model's directory."""


def source_fingerprints(source: Any) -> Tensor | None:
    """`record_fingerprints` of a source's prompts; None if nothing is known of the prompts without making them.

    Args:
        source: a `PromptSource`, or a user's own class with prompts.
    """
    rows = getattr(source, "rows", None)
    if rows is None:
        names = getattr(source, "names", None)
        rows = None if names is None else [{"prompt": name} for name in names]
    return None if rows is None else record_fingerprints(rows)


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
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += sorted({package, *_imports(tree, package)})
        found[name] = _tree_fingerprint(tree)
    return dict(sorted(found.items()))


def _module_of(path: str) -> tuple[str, Path | None]:
    """The module that an import path of a module, class or function lies in, and its file, if it is the user's own."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts) or parts[0] in (*PACKAGES, *sys.builtin_module_names):
        return "", None
    spec = PathFinder.find_spec(parts[0])
    if spec is None:
        return "", None
    # A folder without __init__.py is a package, too, and has no file of its own.
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    file = Path(spec.origin) if spec.origin else (folders[0] if folders else Path())
    if str(file.resolve()).startswith(LIBRARIES) or "site-packages" in file.parts:
        return "", None
    name = parts[0]
    for part in parts[1:]:
        folder = file.parent if file.name == "__init__.py" else file
        inside = [folder / part / "__init__.py", folder / f"{part}.py", folder / part]
        inner = next((path for path in inside if path.exists()), None)
        if inner is None:  # the rest names a class or function in the module
            break
        file = inner
        name = f"{name}.{part}"
    return (name, file) if file.suffix == ".py" and file.is_file() else ("", None)


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """What a module imports, by path.

    Args:
        package: in which the module lies, for relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folders = package.split(".")
            # One dot is the package itself, each further dot the one above.
            above = folders[: len(folders) + 1 - node.level] if node.level else []
            path = ".".join([*above, node.module] if node.module else above)
            if path:
                yield path
                yield from (f"{path}.{alias.name}" for alias in node.names)


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
    """Fingerprints of the small files of a model's directory: configuration, tokenizer, chat template, code."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in SMALL]
    return {file.name: file_fingerprint(file) for file in files if file.is_file()}


def file_fingerprint(file: Path) -> str:
    """The fingerprint of a file's content."""
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=8)).hexdigest()
