"""The tests of the score and the scenes, in an environment with the versions that NAVSIM's devkit can have.

    python -m benchmarks.navsim.beside_devkit FOLDER     # makes FOLDER (1.2 GB), some five minutes on two idle cores

The environment has neither Lightning nor transformers. Fails if a test fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVKIT = ("numpy==1.26.4", "scipy==1.13.1", "omegaconf==2.3.0", "hydra-core==1.3.2", "shapely==2.0.7", "pandas==2.3.3")
"""Newest versions of numpy 1, and of packages that need numpy 1 or that hydra needs; the oldest line of shapely."""
OURS = ("torch>=2.13", "matplotlib>=3.11", "rich>=15.0")
TESTS = ("pytest", "pytest-xdist", "hypothesis")
TESTED = ("tests/navsim_score", "tests/driving_scenes", "--ignore=tests/driving_scenes/test_devkit.py")
"""Tests that run beside the devkit; test_devkit.py needs Lightning for the DataModule and the callback."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the new environment")
    folder = parser.parse_args().folder.absolute()
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *DEVKIT, *OURS, *TESTS], check=True)
    subprocess.run([python, "-m", "pip", "list"], check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *TESTED]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
