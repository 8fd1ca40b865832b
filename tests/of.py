"""The test files of a package file: those that import it, else those that import the files that import it.

    python -m tests.of lightning_cgrpo/modules/policy_steps.py
    python -m tests.of callbacks/progress.py datamodules/base.py

A file of the same name comes first, then those of the names on the way.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
LINKED = ("callbacks", "datamodules")
"""Folders at the top of the repository that are parts of the first package."""


def tests_of(file: Path) -> list[Path]:
    """The nearest tests of a file, relative to the repository.

    Raises:
        SystemExit: the file is none of the packages'.
    """
    return next(waves_of_tests(file), [])


def waves_of_tests(file: Path) -> Iterator[list[Path]]:
    """The nearest tests of a file, then the tests of the files that import it, and so on."""
    module = module_of(file)
    if module not in _graph().modules:
        raise SystemExit(f"Expected a file of {', '.join(PACKAGES)}, but got '{file}'.")
    importers = _importers()
    given: set[Path] = set()
    seen, wave = {module}, [module]
    while wave:
        found = {test for name in wave for test in importers.get(name, ())} - given
        if found:
            names = {f"test_{name.rpartition('.')[2]}" for name in seen}
            yield sorted(found, key=lambda test: (test.stem != f"test_{file.stem}", test.stem not in names, str(test)))
            given |= found
        above = {name for below in wave for name in _above(below)}
        wave = sorted(above - seen)
        seen |= above


def module_of(file: Path) -> str:
    """The dotted path of a file's module."""
    parts = file.with_suffix("").parts
    parts = (PACKAGES[0], *parts) if parts[0] in LINKED else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def _above(module: str) -> set[str]:
    """The package's modules that import a module, or name it in a text, as the commands' table does."""
    return _graph().find_modules_that_directly_import(module) | _naming().get(module, set())


@cache
def _naming() -> dict[str, set[str]]:
    naming: dict[str, set[str]] = {}
    for module in _graph().modules:
        file = ROOT / f"{module.replace('.', '/')}.py"
        for name in re.findall(r'"([\w.]+)"', file.read_text(encoding="utf-8")) if file.is_file() else ():
            if name in _graph().modules:
                naming.setdefault(name, set()).add(module)
    return naming


@cache
def _importers() -> dict[str, set[Path]]:
    """The test files that import a module, by module."""
    importers: dict[str, set[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for module in _imported(ast.parse(path.read_bytes())):
            importers.setdefault(module, set()).add(path.relative_to(ROOT))
    return importers


def _imported(tree: ast.Module) -> Iterator[str]:
    """The modules that define what a test imports, or names in a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGES):
            for alias in node.names:
                yield _defining(node.module, alias.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(PACKAGES):
            yield node.value.rpartition(".")[0]  # of monkeypatch.setattr


def _defining(module: str, name: str) -> str:
    """The module that `name` of `module` comes from: a file of a folder, or one that its ``__init__`` names."""
    modules = _graph().modules
    if f"{module}.{name}" in modules:
        return f"{module}.{name}"
    found = _exported(module).get(name)
    return module if found is None or found == module else _defining(found, name)


@cache
def _exported(module: str) -> dict[str, str]:
    """Modules by the names that a module imports from them, or lists."""
    path = ROOT / module.replace(".", "/")
    file = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
    if file is None:
        return {}
    exported = {}
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            exported |= {alias.asname or alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.Dict):  # names that are imported when they are asked for
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    exported[str(key.value)] = value.value
    return exported


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        for test in tests_of(Path(argument)):
            print(test)
