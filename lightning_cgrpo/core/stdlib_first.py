"""Python's own modules come before users' modules in the current folder: random.py would take random's place.

With ``python -m lightning_cgrpo``, this import does so, before others import random.
"""

import sys


def stdlib_first(folder: str) -> None:
    """Let the modules of a folder be found after Python's own, and before installed ones."""
    while folder in sys.path:
        sys.path.remove(folder)
    # Before the first folder of installed modules, or at the end.
    place = 0
    while place < len(sys.path) and not sys.path[place].endswith(("site-packages", "dist-packages")):
        place += 1
    sys.path.insert(place, folder)


if sys.argv[:1] == ["-m"] and sys.path and "lightning_cgrpo" in " ".join(sys.orig_argv[:4]):
    stdlib_first(sys.path[0])
