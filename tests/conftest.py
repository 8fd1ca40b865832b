"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data, which isn't part of the repository."""
    folder = Path(os.environ.get("LIGHTNING_CGRPO_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set LIGHTNING_CGRPO_SHARED to the folder that holds data/")
    return folder
