"""The reads of the user's code: modules, installed packages, files and variables of the environment.

All is found in the text of the code, without running it. docs/configuration.md lists what can't be found.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.run.fingerprints import file_fingerprint
from lightning_cgrpo.run.module_text import (
    imports_by_computed_name,
    list_files,
    list_imports,
    list_variables,
    reads_docstrings,
    tree_fingerprint,
)
from lightning_cgrpo.settings.settings import Settings, import_paths

STANDARD = str(Path(sysconfig.get_paths()["stdlib"]).resolve())
INSTALLED = tuple({str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("purelib", "platlib")})
PACKAGES = ("lightning_cgrpo", "driving_scenes", "navsim_score")
"""This distribution, whose version tells its code."""
SMALL = 2**22
"""Bytes of an installed package up to which its content counts; of larger packages, the version alone."""
MAIN = "__main__"
TOOLS = ("tools", "environment_factory")
"""Settings whose functions' docstrings a policy reads."""


@dataclass
class Reads:
    """Fingerprints of the inputs of code, by name.

    Args:
        code: modules of the user's own, and small installed packages.
        files: that a task lists.
        found: files that texts in the code name, by ``MODULE, FILE``; they may be no input.
        variables: of the environment; two bytes of a hash, because values may be secrets.
        versions: of installed packages that the code imports.
    """

    code: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, listed: Iterable[str]) -> None:
        """Add files, folders and packages that a task lists.

        Raises:
            UserError: there is no such file, folder or package, or it can't be read.
        """
        for name in listed:
            try:
                self._add_listed(name)
            except OSError as error:
                raise UserError(
                    f"Expected reads to list what can be read, but got '{name}': {first_line(error)}."
                ) from error

    def _add_listed(self, name: str) -> None:
        path = expand_path(name)
        if path.is_file():
            self.files[name] = file_fingerprint(path)
            return
        if path.is_dir():
            self.files[name] = _folder_fingerprint(path)
            return
        package = _package_place(name.partition(".")[0])
        if package is None:
            raise UserError(f"Expected reads to list files, folders or packages, but there is no '{name}'.")
        self.code[name] = _folder_fingerprint(package)


def reads_in(settings: Settings, also: Iterable[str] = ()) -> Reads:
    """The reads of the code that settings name, and of the list in the task's ``reads``.

    Args:
        also: further import paths.
    """
    tool_settings = {key: value for key, value in settings.items() if key.rpartition(".")[2] in TOOLS}
    reads = reads_of([*import_paths(settings), *also], tools=import_paths(tool_settings))
    reads.add(listed_in(settings))
    return reads


def listed_in(settings: Settings) -> list[str]:
    """The files, folders and packages that a task lists in ``reads``."""
    listed: list[str] = []
    for key, names in settings.items():
        if key.endswith("task.reads"):
            listed += names or ()
    return listed


def reads_of(paths: Iterable[str], tools: Iterable[str] = ()) -> Reads:
    """The reads of the modules that import paths name, and of the user's modules that they import.

    Comments and layout do not count. Docstrings count where they are in use: in modules of tools, whose schemas they
    are, and everywhere if some code reads docstrings.

    Args:
        tools: import paths of tools.
    """
    reads = Reads()
    trees: dict[str, ast.Module] = {}
    tool_modules = {_module_of(path)[0] for path in tools}

    # Follow the imports from module to module.
    waiting = sorted({*paths, *tools})
    while waiting:
        path = waiting.pop()
        name, file = _module_of(path)
        if file is None:
            _add_installed(reads, path.partition(".")[0])
            continue
        if name in trees:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # importing the module reports the error
        trees[name] = tree
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        beside = _imported_beside(file) if imports_by_computed_name(tree) else ()
        waiting += sorted({package, *list_imports(tree, package), *beside})
        reads.variables |= {key: _variable_fingerprint(key) for key in list_variables(tree)}
        for text, place in list_files(tree, file):
            with suppress(OSError):  # another user's file, or one that is removed at this moment
                reads.found[f"{name}, {text}"] = _found_fingerprint(place)

    # The code of each module, once it is known whether any module reads docstrings.
    docstrings_in_use = any(reads_docstrings(tree) for tree in trees.values())
    for name, tree in sorted(trees.items()):
        reads.code[name] = tree_fingerprint(tree, docstrings=docstrings_in_use or name in tool_modules)
    return reads


# ---------------------------------------------------------------------- modules and packages


def _module_of(path: str) -> tuple[str, Path | None]:
    """The module that an import path of a module, class or function lies in, and its file, if it is the user's own."""
    name, *parts = path.split(".")
    if name == MAIN:
        script = getattr(sys.modules.get(MAIN), "__file__", None)
        if script is None or _is_library(Path(script)):
            return "", None
        return MAIN, Path(script)
    if not name.isidentifier() or name in (*PACKAGES, *sys.builtin_module_names):
        return "", None
    _, file = _find_module(name)
    if file is None or _is_library(file):
        return "", None
    for part in parts:
        folder = file.parent if file.name == "__init__.py" else file
        candidates = [folder / part / "__init__.py", folder / f"{part}.py", folder / part]
        inner = next((candidate for candidate in candidates if candidate.exists()), None)
        if inner is None or not part.isidentifier():  # the rest names a class or function in the module
            break
        file = inner
        name = f"{name}.{part}"
    if file.suffix != ".py" or not file.is_file():
        return "", None
    return name, file


def _find_module(name: str) -> tuple[list[Path], Path | None]:
    """The folders of a package, and the file of a module; also of a package that is installed in place."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a module without a spec
        spec = None
    if spec is None:
        return [], None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if spec.has_location and spec.origin:
        return folders, Path(spec.origin)
    if not folders:
        return [], None
    # A folder without __init__.py is a package, too, and has no file of its own.
    return folders, folders[0]


def _imported_beside(file: Path) -> Iterator[str]:
    """The modules imported by now that lie beside a module."""
    folder = file.resolve().parent
    for name, module in [*sys.modules.items()]:
        module_file = getattr(module, "__file__", None)
        if name == MAIN or not module_file:
            continue
        if Path(module_file).resolve().is_relative_to(folder) and not _is_library(Path(module_file)):
            yield name


def _is_library(file: Path) -> bool:
    return str(file.resolve()).startswith((STANDARD, *INSTALLED)) or "site-packages" in file.parts


def _package_place(name: str) -> Path | None:
    """The folder or file of a package that is installed beside the standard library; None for others."""
    if not name.isidentifier() or name in (*PACKAGES, *sys.builtin_module_names, *sys.stdlib_module_names):
        return None
    folders, file = _find_module(name)
    return folders[0] if folders else file


def _add_installed(reads: Reads, name: str) -> None:
    """Add the version of an installed package, and its content if it is small."""
    if name in reads.versions:
        return
    place = _package_place(name)
    if place is None or not _is_library(place):
        return
    try:
        reads.versions[name] = version(name)
    except PackageNotFoundError:
        reads.versions[name] = "unknown"
    with suppress(OSError):
        if _is_small(place):
            reads.code[name] = _folder_fingerprint(place)


def _list_contents(place: Path) -> list[Path]:
    """The files in a folder, or the file itself, without Python's compiled files."""
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def _is_small(place: Path) -> bool:
    """True for up to `SMALL` bytes; counting ends where they are exceeded."""
    files = place.rglob("*") if place.is_dir() else [place]
    total = 0
    for file in files:
        if file.is_file():
            total += file.stat().st_size
        if total > SMALL:
            return False
    return True


def _variable_fingerprint(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        return "unset"
    return blake2b(value.encode(errors="surrogateescape"), digest_size=2).hexdigest()


def _found_fingerprint(file: Path) -> str:
    """Fingerprint of a file's content, or of a large file's size and time, because it may be no input."""
    stat = file.stat()
    if stat.st_size <= SMALL:
        return file_fingerprint(file)
    return f"{stat.st_size} bytes at {stat.st_mtime_ns}"


def _folder_fingerprint(place: Path) -> str:
    digest = blake2b(digest_size=8)
    for file in _list_contents(place):
        digest.update(f"{file.relative_to(place)} {file_fingerprint(file)}".encode())
    return digest.hexdigest()
