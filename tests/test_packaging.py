"""The wheel is whole."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_wheel_has_configs_and_linked_packages_and_runs_elsewhere(tmp_path):
    # From a copy of what git tracks, links and all, so that no build folder lands in the checkout.
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    for config in (ROOT / "configs").rglob("*.yaml"):
        assert f"lightning_cgrpo/configs/{config.relative_to(ROOT / 'configs')}" in names
    for file in (ROOT / "lightning_cgrpo" / "models").glob("*/*"):
        assert str(file.relative_to(ROOT)) in names
    for package in ("callbacks", "datamodules"):
        for module in (ROOT / package).glob("*.py"):
            assert f"lightning_cgrpo/{package}/{module.name}" in names
    command = [sys.executable, "-m", "lightning_cgrpo", "fit", "-c", "configs/gridworld.yaml", "--trainer.max_steps=1"]
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "runs" / "gridworld" / "version_0" / "config.yaml").is_file()
