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
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.run.fingerprints import file_fingerprint
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
READS_DOCSTRINGS = {"__doc__", "getdoc", "cleandoc", "get_json_schema", "convert_to_openai_tool"}
IMPORTS = {"import_module", "__import__", "run_module", "find_spec", "resolve_name"}
JOINS = {"join", "joinpath", "Path", "PurePath"}
WRITERS = {"write_text", "write_bytes"}
"""Methods of a path that write its file."""
SAVERS = {"save", "savez", "savez_compressed"}
"""Functions that write files."""
OPENERS = {"io", "os", "codecs", "gzip", "bz2", "lzma", "builtins"}
"""Modules whose `open` takes the path before the mode."""
SYSTEM = ("/proc/", "/dev/", "/sys/")


@dataclass
class Reads:
    """Fingerprints of what code reads, by name.

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
            path = expand_path(name)
            try:
                if path.is_file():
                    self.files[name] = file_fingerprint(path)
                elif path.is_dir():
                    self.files[name] = _folder_fingerprint(path)
                elif (place := _package_place(name.partition(".")[0])) is not None:
                    self.code[name] = _folder_fingerprint(place)
                else:
                    raise UserError(f"Expected reads to list files, folders or packages, but there is no '{name}'.")
            except OSError as error:
                raise UserError(
                    f"Expected reads to list what can be read, but got '{name}': {first_line(error)}."
                ) from error


def reads_in(settings: Settings, also: Iterable[str] = ()) -> Reads:
    """What the code that settings name reads, and what its task lists in ``reads``.

    Args:
        also: further import paths.
    """
    of_tools = {key: value for key, value in settings.items() if key.rpartition(".")[2] in TOOLS}
    found = reads_of([*import_paths(settings), *also], tools=import_paths(of_tools))
    found.add(listed_in(settings))
    return found


def listed_in(settings: Settings) -> list[str]:
    """The files, folders and packages that a task lists in ``reads``."""
    return [name for key, names in settings.items() if key.endswith("task.reads") for name in names or ()]


def reads_of(paths: Iterable[str], tools: Iterable[str] = ()) -> Reads:
    """The reads of the modules that import paths name, and of the user's modules that they import.

    Comments and layout do not count. Docstrings count where they are in use: in modules of tools, whose schemas they
    are, and everywhere if some code reads docstrings.

    Args:
        tools: import paths of tools.
    """
    found, trees = Reads(), dict[str, ast.Module]()
    documented = {_module_of(path)[0] for path in tools}
    waiting = sorted({*paths, *tools})
    while waiting:
        path = waiting.pop()
        name, file = _module_of(path)
        if file is None:
            _add_installed(found, path.partition(".")[0])
            continue
        if name in trees:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # the import tells
        trees[name] = tree
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += sorted({package, *_imports(tree, package), *_imported_beside(tree, file)})
        found.variables |= {key: _variable_fingerprint(key) for key in _variables(tree)}
        for text, place in _files(tree, file):
            with suppress(OSError):  # another user's file, or one that is removed at this moment
                found.found[f"{name}, {text}"] = _found_fingerprint(place)
    in_use = any(_named(node) in READS_DOCSTRINGS for tree in trees.values() for node in ast.walk(tree))
    for name, tree in sorted(trees.items()):
        found.code[name] = _tree_fingerprint(tree, docstrings=in_use or name in documented)
    return found


# ---------------------------------------------------------------------- modules and packages


def _module_of(path: str) -> tuple[str, Path | None]:
    """The module that an import path of a module, class or function lies in, and its file, if it is the user's own."""
    parts = path.split(".")
    if parts[0] == MAIN:
        script = getattr(sys.modules.get(MAIN), "__file__", None)
        own = script is not None and not _is_library(Path(script))
        return (MAIN, Path(script)) if own and script is not None else ("", None)
    if not parts[0].isidentifier() or parts[0] in (*PACKAGES, *sys.builtin_module_names):
        return "", None
    _, file = _place(parts[0])
    if file is None or _is_library(file):
        return "", None
    name = parts[0]
    for part in parts[1:]:
        folder = file.parent if file.name == "__init__.py" else file
        inside = [folder / part / "__init__.py", folder / f"{part}.py", folder / part]
        inner = next((path for path in inside if path.exists()), None)
        if inner is None or not part.isidentifier():  # the rest names a class or function in the module
            break
        file = inner
        name = f"{name}.{part}"
    return (name, file) if file.suffix == ".py" and file.is_file() else ("", None)


def _place(name: str) -> tuple[list[Path], Path | None]:
    """The folders of a package, and the file of a module; also of a package that is installed in place."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a module without a spec
        spec = None
    if spec is None:
        return [], None
    # A folder without __init__.py is a package, too, and has no file of its own.
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return folders, Path(spec.origin) if spec.has_location and spec.origin else (folders[0] if folders else None)


def _is_library(file: Path) -> bool:
    return str(file.resolve()).startswith((STANDARD, *INSTALLED)) or "site-packages" in file.parts


def _package_place(name: str) -> Path | None:
    """The folder or file of a package that is installed beside the standard library; None for others."""
    if not name.isidentifier() or name in (*PACKAGES, *sys.builtin_module_names, *sys.stdlib_module_names):
        return None
    folders, file = _place(name)
    return folders[0] if folders else file


def _add_installed(found: Reads, name: str) -> None:
    """Add the version of an installed package, and its content if it is small."""
    place = None if name in found.versions else _package_place(name)
    if place is None or not _is_library(place):
        return
    try:
        found.versions[name] = version(name)
    except PackageNotFoundError:
        found.versions[name] = "unknown"
    with suppress(OSError):
        if _size(place) <= SMALL:
            found.code[name] = _folder_fingerprint(place)


def _contents(place: Path) -> list[Path]:
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def _size(place: Path) -> int:
    total = 0
    for file in place.rglob("*") if place.is_dir() else [place]:
        total += file.stat().st_size if file.is_file() else 0
        if total > SMALL:
            break
    return total


def _found_fingerprint(file: Path) -> str:
    """Fingerprint of a file's content, or of a large file's size and time, because it may be no input."""
    stat = file.stat()
    return file_fingerprint(file) if stat.st_size <= SMALL else f"{stat.st_size} bytes at {stat.st_mtime_ns}"


def _folder_fingerprint(place: Path) -> str:
    digest = blake2b(digest_size=8)
    for file in _contents(place):
        digest.update(f"{file.relative_to(place)} {file_fingerprint(file)}".encode())
    return digest.hexdigest()


# ---------------------------------------------------------------------- the text of a module


def _named(node: ast.AST) -> str:
    """The name of a variable, attribute, or called function."""
    if isinstance(node, ast.Call):
        return _named(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """The imports of a module, by path, also by `importlib` with a text.

    Args:
        package: in which the module lies, for relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            path = _absolute(node.module or "", node.level, package)
            if path:
                yield path
                yield from (f"{path}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _named(node) in IMPORTS and node.args:
            text = _text(node.args[0])
            if text is not None:
                yield _absolute(text.lstrip("."), len(text) - len(text.lstrip(".")), package).replace(":", ".")


def _absolute(module: str, level: int, package: str) -> str:
    """A path without leading dots: one dot is the package itself, each further dot the one above."""
    folders = package.split(".")
    above = folders[: len(folders) + 1 - level] if level else []
    return ".".join([*above, module] if module else above)


def _imported_beside(tree: ast.Module, file: Path) -> Iterator[str]:
    """Modules beside a module that imports by a computed name, as far as they are imported by now."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _named(node) in IMPORTS)
    if all(node.args and _text(node.args[0]) is not None for node in calls):
        return
    folder = file.resolve().parent
    for name, module in [*sys.modules.items()]:
        place = getattr(module, "__file__", None)
        if name != MAIN and place and Path(place).resolve().is_relative_to(folder) and not _is_library(Path(place)):
            yield name


def _variables(tree: ast.Module) -> Iterator[str]:
    """Names of the environment's variables that a module reads."""
    for node in ast.walk(tree):
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and _named(node.value) == "environ":
            key = node.slice
        elif isinstance(node, ast.Call) and node.args:
            of_environ = isinstance(node.func, ast.Attribute) and _named(node.func.value) == "environ"
            key = node.args[0] if of_environ or _named(node) == "getenv" else None
        elif isinstance(node, ast.Compare) and _named(node.comparators[0]) == "environ":
            key = node.left
        if (text := _text(key)) is not None:
            yield text


def _variable_fingerprint(name: str) -> str:
    value = os.environ.get(name)
    return "unset" if value is None else blake2b(value.encode(errors="surrogateescape"), digest_size=2).hexdigest()


def _files(tree: ast.Module, file: Path) -> Iterator[tuple[str, Path]]:
    """The existing files that texts of a module name, from the working directory or beside the module.

    Parts of a path that are joined count together. Files that the module writes, as a cache, do not count, nor do files
    of runs and of the operating system.
    """
    # What is written, also by the name of a constant.
    constants: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    places = [place for node in ast.walk(tree) if isinstance(node, ast.Call) for place in _written(node)]
    named = [constants.get(place.id, place) if isinstance(place, ast.Name) else place for place in places]
    written = {text for place in named for text in _path_texts(place)}

    # What is read.
    for text in sorted({text for node in ast.walk(tree) for text in _path_texts(node)} - written):
        for place in (expand_path(text), file.parent / text):
            with suppress(OSError, ValueError):  # a text that is no path
                if place.is_file() and place.suffix not in (".py", ".ckpt") and not _is_made(place):
                    yield text, place
                    break


def _written(node: ast.Call) -> list[ast.AST]:
    """The paths that a call writes, as nodes."""
    called, owner = _named(node), node.func.value if isinstance(node.func, ast.Attribute) else None
    if called in WRITERS:
        return [owner] if owner is not None else []
    if called in SAVERS:
        return [*node.args]
    of_path = owner is not None and _named(owner) not in OPENERS  # as Path(…).open("w")
    given = node.args[:1] if of_path else node.args[1:2]
    modes = [*given, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    if called != "open" or not any({*"wax"} & {*(_text(mode) or "")} for mode in modes):
        return []
    return [owner] if of_path and owner is not None else [*node.args[:1]]


def _is_made(place: Path) -> bool:
    """True for files of the operating system and in the folders of runs, which change by themselves."""
    place = place.resolve()
    return str(place).startswith(SYSTEM) or any((folder / SUMMARY).is_file() for folder in place.parents)


def _path_texts(node: ast.AST) -> Iterator[str]:
    """The text of a path that a node joins of constant parts, from the last part that isn't constant."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.Constant):
        parts = [node]
    elif isinstance(node, ast.Call) and _named(node) in JOINS:
        parts = [*node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        while isinstance(node, ast.BinOp):
            parts.insert(0, node.right)
            node = node.left
        parts.insert(0, node)
    texts: list[str] = []
    for part in reversed(parts):
        text = _text(part)
        if text is None:
            break
        texts.insert(0, text)
    if texts and "\n" not in (joined := os.path.join(*texts)) and joined.strip():
        yield joined


def _tree_fingerprint(tree: ast.Module, docstrings: bool) -> str:
    for node in [] if docstrings else ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # Texts that are statements are docstrings or comments.
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return blake2b(ast.dump(tree).encode(), digest_size=8).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and _text(node.value) is not None
