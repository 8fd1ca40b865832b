"""The C library's memory, which small models ask for more often than they compute."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h."""


def reuse_blocks() -> None:
    """Have glibc keep freed blocks of up to 32 MiB for the next tensors, where there is glibc.

    By default it returns them to the system and asks again, and every new page costs a fault, which a small model's
    update notices. Up to 256 MiB stay with the process.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # Another C library.
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 256 << 20)
