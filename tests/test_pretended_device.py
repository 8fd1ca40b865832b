"""The checks on a pretended GPU, in a process of their own: the device that they register would be every test's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("pretended_checks.py")


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_package_runs_on_a_device_that_is_not_the_cpu(marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", marked, str(CHECKS)]
    done = subprocess.run(
        command,
        cwd=CHECKS.parents[1],
        env=os.environ | {"PRETENDED": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:]
