"""One run at a time writes into a folder of checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]


class FolderLock:
    """A lock of a folder until `release`, or until the process ends."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def take(self, folder: Path) -> bool:
        """Make the folder if needed, and lock it; False if another run has it.

        Without locks, as on some network drives, every run gets the folder.
        """
        if flock is None or self._descriptor is not None:
            return True
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            return True
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
