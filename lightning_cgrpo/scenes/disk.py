"""Pieces of NAVSIM's data on the disk, and their faults in a few words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_cgrpo.output import write_whole

READERS = 16
"""Threads that look at files, because network disks answer slowly."""
ENDS: Mapping[str, tuple[bytes, bytes, int]] = {
    ".jpg": (b"\xff\xd8", b"\xff\xd9", 4096),  # some cameras fill up the file after the end of the image
    ".png": (b"\x89PNG", b"IEND\xaeB`\x82", 4096),
    ".gpkg": (b"SQLite format 3\0", b"", 0),
    ".pkl": (b"\xfd7zXZ\0", b"YZ", 2),  # metric caches are compressed by lzma
}
"""By suffix: how whole files begin, bytes near their end, and the number of last bytes that have these."""


def fault(path: str | Path) -> str | None:
    """Tell that a file is missing, empty, cut off or of another kind; None for a whole file.

    Only the first and last bytes are read.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin, end, last = ENDS.get(Path(path).suffix, (b"", b"", 0))
            file.seek(0)
            begins = file.read(len(begin)) == begin
            file.seek(max(0, size - last))
            ends = end in file.read(last)
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if not size:
        return "empty"
    return None if begins and ends else "cut off" if begins else "corrupt"


def faults(paths: Iterable[str]) -> dict[str, str]:
    """The paths of `paths` with a `fault`, and their faults."""
    listed = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(READERS) as readers:
        return {path: wrong for path, wrong in zip(listed, readers.map(fault, listed), strict=True) if wrong}


def state(*paths: Path) -> str:
    """Sizes and times of change, which tell whether files or folders changed."""
    told = []
    for path in paths:
        try:
            status = path.stat()
            told.append(f"{status.st_size}:{status.st_mtime_ns}")
        except OSError:
            told.append("-")
    return " ".join(told)


def remembered(name: str) -> dict[str, Any]:
    """The object that `remember` wrote, or an empty one."""
    with suppress(OSError, ValueError):
        content = json.loads(_file(name).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}


def remember(name: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object into the user's cache, ``$XDG_CACHE_HOME/lightning_cgrpo`` (``~/.cache``)."""
    with suppress(OSError):  # a cache that can't be written costs time only
        _file(name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(_file(name), json.dumps(content))


def _file(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_cgrpo" / f"{name}.json"
