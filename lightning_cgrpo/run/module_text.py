"""What the text of a module tells without running it: imports, variables of the environment and files."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.core.paths import expand_path

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


def _name_of(node: ast.AST) -> str:
    """The name of a variable, attribute, or called function; "" for other nodes."""
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""


def _constant_text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def list_imports(tree: ast.Module, package: str) -> Iterator[str]:
    """The imports of a module, by path, also by `importlib` with a text.

    Args:
        package: the module's package, for relative imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            path = _absolute_path(node.module or "", node.level, package)
            if path:
                yield path
                for alias in node.names:  # each name may be a module, too
                    yield f"{path}.{alias.name}"
        elif isinstance(node, ast.Call) and _name_of(node) in IMPORTS and node.args:
            text = _constant_text(node.args[0])
            if text is not None:
                module = text.lstrip(".")
                dots = len(text) - len(module)
                yield _absolute_path(module, dots, package).replace(":", ".")


def _absolute_path(module: str, level: int, package: str) -> str:
    """A path without leading dots: one dot is the package itself, each further dot the package above."""
    if not level:
        return module
    folders = package.split(".")
    above = folders[: len(folders) + 1 - level]
    if module:
        above.append(module)
    return ".".join(above)


def imports_by_computed_name(tree: ast.Module) -> bool:
    """Whether a module imports others whose names its text does not say."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _name_of(node) not in IMPORTS:
            continue
        if not node.args or _constant_text(node.args[0]) is None:
            return True
    return False


def list_variables(tree: ast.Module) -> Iterator[str]:
    """Names of the environment's variables that a module reads."""
    for node in ast.walk(tree):
        key = _constant_text(_variable_key(node))
        if key is not None:
            yield key


def _variable_key(node: ast.AST) -> ast.AST | None:
    """The node that names the variable of the environment which this node reads, if it reads one."""
    if isinstance(node, ast.Subscript) and _name_of(node.value) == "environ":  # environ["NAME"]
        return node.slice
    if isinstance(node, ast.Call) and node.args:
        of_environ = isinstance(node.func, ast.Attribute) and _name_of(node.func.value) == "environ"
        if of_environ or _name_of(node) == "getenv":  # environ.get("NAME") or getenv("NAME")
            return node.args[0]
    if isinstance(node, ast.Compare) and _name_of(node.comparators[0]) == "environ":  # "NAME" in environ
        return node.left
    return None


def list_files(tree: ast.Module, file: Path) -> Iterator[tuple[str, Path]]:
    """The existing files that texts of a module name, from the working directory or beside the module.

    Parts of a path that are joined count together. Files that the module writes, as a cache, do not count, nor do files
    of runs and of the operating system.
    """
    written = _written_texts(tree)
    texts: set[str] = set()
    for node in ast.walk(tree):
        texts.update(_path_texts(node))
    for text in sorted(texts - written):
        for place in (expand_path(text), file.parent / text):
            with suppress(OSError, ValueError):  # a text that is no path
                if place.is_file() and place.suffix not in (".py", ".ckpt") and not _is_output(place):
                    yield text, place
                    break


def _written_texts(tree: ast.Module) -> set[str]:
    """The paths that a module writes, also by the name of a constant."""
    constants: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    texts: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        for place in _written_paths(node):
            value = constants.get(place.id, place) if isinstance(place, ast.Name) else place
            texts.update(_path_texts(value))
    return texts


def _written_paths(node: ast.Call) -> list[ast.AST]:
    """The paths that a call writes, as nodes."""
    called = _name_of(node)
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if called in WRITERS:
        return [owner] if owner is not None else []
    if called in SAVERS:
        return [*node.args]
    if called != "open":
        return []
    # In Path(…).open("w"), the mode comes first, and in open(path, "w") second.
    path = owner if owner is not None and _name_of(owner) not in OPENERS else None
    modes: list[ast.expr] = node.args[1:2] if path is None else node.args[:1]
    modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    if not any({*"wax"} & {*(_constant_text(mode) or "")} for mode in modes):
        return []
    return [*node.args[:1]] if path is None else [path]


def _is_output(place: Path) -> bool:
    """True for files of the operating system and in the folders of runs, which change by themselves."""
    place = place.resolve()
    return str(place).startswith(SYSTEM) or any((folder / SUMMARY).is_file() for folder in place.parents)


def _path_texts(node: ast.AST) -> Iterator[str]:
    """The text of a path that a node joins of constant parts, from the last part that isn't constant."""
    # The parts: "a.txt", Path("a", "b.txt") or folder / "b.txt".
    parts: list[ast.AST] = []
    if isinstance(node, ast.Constant):
        parts = [node]
    elif isinstance(node, ast.Call) and _name_of(node) in JOINS:
        parts = [*node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        while isinstance(node, ast.BinOp):
            parts.insert(0, node.right)
            node = node.left
        parts.insert(0, node)

    # The constant parts at the end.
    texts: list[str] = []
    for part in reversed(parts):
        text = _constant_text(part)
        if text is None:
            break
        texts.insert(0, text)
    if not texts:
        return
    path = os.path.join(*texts)
    if "\n" not in path and path.strip():
        yield path


def reads_docstrings(tree: ast.Module) -> bool:
    """Whether a module uses docstrings."""
    return any(_name_of(node) in READS_DOCSTRINGS for node in ast.walk(tree))


def tree_fingerprint(tree: ast.Module, docstrings: bool) -> str:
    """Fingerprint of a module's code; docstrings that do not count are removed from the tree first."""
    if not docstrings:
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                # Texts that are statements are docstrings or comments.
                node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return blake2b(ast.dump(tree).encode(), digest_size=8).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and _constant_text(node.value) is not None
