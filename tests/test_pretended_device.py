"""The checks on a pretended GPU, in a process of their own: the device that they register would be every test's."""

from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.forked import forked

CHECKS = Path(__file__).with_name("pretended_checks.py")


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="torch 2.9 has no backends in Python",
)
@pytest.mark.slow
def test_the_package_runs_on_a_device_that_is_not_the_cpu(tmp_path: Path) -> None:
    command = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", "", str(CHECKS)]
    output = tmp_path / "output.txt"
    with forked(pytest.main, command, output=output, environment={"PRETENDED": "1"}) as process:
        process.join(900)
    assert process.exitcode == 0 and " passed" in output.read_text(), output.read_text()[-6000:]
