"""Property tests have the same examples in each fast run, and others with --hypothesis-profile=random."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = """
from hypothesis import given, settings, strategies as st

@settings(max_examples=5)
@given(st.integers(0, 10**12))
def test_any(number):
    print("drawn", number)
"""


@pytest.mark.slow
def test_random_examples_differ_from_run_to_run(tmp_path):
    (tmp_path / "test_any.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())

    def drawn(*flags):
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *flags, "test_any.py"]
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return [line for line in ended.stdout.splitlines() if "drawn" in line]

    same, again, random, other = drawn(), drawn(), *(drawn("--hypothesis-profile=random") for _ in range(2))
    assert same == again and len(same) == 5
    assert random != other != same
