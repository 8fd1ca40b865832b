"""Tests in verl's own environment, which CONTRIBUTING.md makes: ``python tests/with_verl``.

Not ``python -m tests.with_verl``, because verl's wheel has a package `tests` of its own.
"""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    root = str(Path(__file__).parents[2])
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root  # of Ray's processes
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "lightning_cgrpo.verl"
    # The options and fixtures of the other tests need packages that this environment lacks.
    options = ["-o", "addopts=", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-q"]
    sys.exit(pytest.main([*options, str(Path(__file__).parent), *sys.argv[1:]]))
