"""The core: its files, its functions and its caches."""

import contextlib
import fnmatch
import functools
import gc
import importlib
from collections import defaultdict
from types import FunctionType
from typing import Any

from tests.mutants.kept import ROOT

ROOMS = "grpo", "modules", "multipliers", "objective", "policies", "samplers"
CORE = (
    *(f"lightning_cgrpo/core/{name}.py" for name in ("copies", "randomness", "rollout")),
    *(f"lightning_cgrpo/{room}/*.py" for room in ROOMS),
    "lightning_cgrpo/trl/lagrangian.py",
    *(
        f"lightning_cgrpo/callbacks/{name}.py"
        for name in ("checkpoints", "fixed_weights", "lagrangian", "safe_checkpoints", "weight_setter")
    ),
    *(f"navsim_score/{room}/*.py" for room in ("expert", "geometry", "route", "scoring", "simulation")),
    "navsim_score/scorer.py",
)
# They need a GPU or a vLLM server; a model that tests alone have.
WITHOUT = "*/shared_prefix/varlen.py", "*/vllm/nccl_push.py", "*/vllm/ipc_push.py", "*/policies/tiny/*"


def core_files() -> list[str]:
    found = []
    for pattern in CORE:
        folder, _, name = pattern.rpartition("/")
        found += [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).rglob(name))]
    return [file for file in found if not any(fnmatch.fnmatch(file, without) for without in WITHOUT)]


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


def forget(caches: list[Any]) -> None:
    """So that a test doesn't get what an earlier test, or the code without a change, has computed."""
    for cached in caches:
        cached.cache_clear()
