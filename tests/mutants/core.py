"""The core: its files, its functions and its caches."""

import contextlib
import fnmatch
import functools
import gc
import importlib
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.mutants.kept import ROOT

PACKAGES = "lightning_cgrpo", "driving_scenes", "navsim_score"
# They need a GPU or a vLLM server; a model that tests alone have; figures for people; verl, which is not installed.
WITHOUT = (
    "*/shared_prefix/varlen.py", "*/vllm/nccl_push.py", "*/vllm/ipc_push.py", "*/policies/tiny/*", "*/report/figures/*",
    "*/verl*", "*/configs/*",
)  # fmt: skip


def core_files() -> list[str]:
    """All files of the packages, in all rooms; callbacks and data modules by their links."""
    found = []
    for package in PACKAGES:
        for folder, _, names in os.walk(ROOT / package, followlinks=True):
            found += [str(Path(folder, name).relative_to(ROOT)) for name in names if name.endswith(".py")]
    return [file for file in sorted(found) if not any(fnmatch.fnmatch(file, without) for without in WITHOUT)]


def room_of(file: str) -> str:
    """``grpo`` of lightning_cgrpo/grpo/losses.py, and a package's name of its other files."""
    package, *rooms, _ = file.split("/")
    return rooms[0] if package == "lightning_cgrpo" and rooms else package


def functions_of_core() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the core by file, name and first line, also those that decorators wrap."""
    for file in core_files():
        import_quietly(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    files = {str(ROOT / file): file for file in core_files()}
    found = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in files:
            code = thing.__code__
            found[files[code.co_filename], code.co_qualname, code.co_firstlineno].append(thing)
    return found


def import_quietly(name: str) -> None:
    # Tests make modules up, which are gone then.
    with contextlib.suppress(Exception):
        importlib.import_module(name)


CACHED: Any = type(functools.cache(len))


def cached_functions() -> list[Any]:
    """Cached functions of this repository."""
    return [thing for thing in gc.get_objects() if type(thing) is CACHED and str(ROOT) in _file_of(thing.__wrapped__)]


def _file_of(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def set_constant(file: str, name: str, value: Any) -> None:
    """Change a constant of a module, also where others have imported it, or of a class."""
    module = importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    owner, _, attribute = name.rpartition(".")
    holder: Any = module
    for part in owner.split(".") if owner else ():
        holder = getattr(holder, part)
    old = getattr(holder, attribute)
    setattr(holder, attribute, value)
    if not owner:
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(attribute) is old:
                setattr(other, attribute, value)


def set_default(function: FunctionType, name: str, value: Any) -> None:
    """Change the default of an argument."""
    code = function.__code__
    if name in (function.__kwdefaults__ or {}):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), name: value}
        return
    defaults = list(function.__defaults__ or ())
    place = code.co_varnames.index(name) - (code.co_argcount - len(defaults))
    defaults[place] = value
    function.__defaults__ = tuple(defaults)


def forget(caches: list[Any]) -> None:
    """So that a test doesn't get what an earlier test, or the code without a change, has computed."""
    for cached in caches:
        cached.cache_clear()
