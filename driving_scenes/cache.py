"""A cache of JSON objects in the user's folder, for facts that are slow to read from the data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def files_state(*paths: Path) -> str:
    """Sizes and times of change, which tell whether files or folders changed."""
    states = []
    for path in paths:
        try:
            status = path.stat()
            states.append(f"{status.st_size}:{status.st_mtime_ns}")
        except OSError:
            states.append("-")
    return " ".join(states)


def remembered(name: str) -> dict[str, Any]:
    """The object that `remember` wrote, or an empty one."""
    with suppress(OSError, ValueError):
        content = json.loads(_cache_file(name).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def remember(name: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object into the user's cache, ``$XDG_CACHE_HOME/lightning_cgrpo`` (``~/.cache``)."""
    with suppress(OSError):  # a cache that can't be written costs time only
        _cache_file(name).parent.mkdir(parents=True, exist_ok=True)
        with unfinished(_cache_file(name)) as file:
            file.write_text(json.dumps(content), encoding="utf-8")


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A path beside `path`, renamed to `path` at the end, so that readers never see half of a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    yield beside
    os.replace(beside, path)


def _cache_file(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_cgrpo" / f"{name}.json"
