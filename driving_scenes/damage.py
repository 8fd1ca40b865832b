"""Damaged files of NAVSIM's data, and their faults in a few words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    if not begins:
        return "corrupt"
    return None if ends else "cut off"


def faults(paths: Iterable[str]) -> dict[str, str]:
    """The paths of `paths` with a `fault`, and their faults."""
    listed = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(READERS) as readers:
        reasons = list(readers.map(fault, listed))
    return {path: reason for path, reason in zip(listed, reasons, strict=True) if reason}
