"""Python's own modules come before users' modules in the current folder: random.py would take random's place.

With ``python -m lightning_cgrpo``, this import does so, before others import random.
"""

import sys


def stdlib_first(folder: str) -> None:
    """Let the modules of a folder be found after Python's own, and before installed ones."""
    while folder in sys.path:
        sys.path.remove(folder)
    installed = (place for place, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages")))
    sys.path.insert(next(installed, len(sys.path)), folder)


if sys.argv[:1] == ["-m"] and sys.path and "lightning_cgrpo" in " ".join(sys.orig_argv[:4]):
    stdlib_first(sys.path[0])
