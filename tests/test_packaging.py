"""The source distribution and the wheel are whole, and work in an environment that has no checkout."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import lightning_cgrpo

ROOT = Path(__file__).parents[1]
USE = """\
from lightning_cgrpo import Constraint, Objective, load
from lightning_cgrpo.multipliers import DampedAscent

reveal_type(Constraint(at_most=0.1))
reveal_type(load)
DampedAscent(gain="high")
Objective(reward=3)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the source distribution, and the wheel made from it."""
    # From a copy of what git tracks, links and all, so that no build folder lands in the checkout.
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "source")], check=True)
    subprocess.run([sys.executable, "-m", "build", "-o", str(folder), str(folder / "source")], check=True)
    return folder


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """Python of a new environment with the installed wheel, and this environment's other packages."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Files named in a .pth file of that folder, such as the link to the checkout, are not read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python, (wheel,) = str(folder / "bin" / "python"), built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, str(wheel)], check=True)
    assert (site / "lightning_cgrpo").is_dir()
    return python


def run(*command, cwd):
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_both_have_configs_models_and_linked_packages(built):
    ((wheel,), (source,)) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    expected = ["lightning_cgrpo/py.typed", "lightning_cgrpo/__init__.pyi"]
    for link in ("configs", "callbacks", "datamodules"):
        files = [file for file in (ROOT / link).rglob("*") if file.suffix in (".yaml", ".py")]
        expected += [f"lightning_cgrpo/{file.relative_to(ROOT)}" for file in files]
    expected += [str(file.relative_to(ROOT)) for file in (ROOT / "lightning_cgrpo" / "models").glob("*/*")]
    for link in ("callbacks", "controllers", "scene_sources"):
        files = (ROOT / "examples" / link).glob("*.py")
        expected += [f"lightning_cgrpo/importable/{file.relative_to(ROOT)}" for file in files]
    assert [name for name in expected if name not in in_wheel or name not in in_source] == []


@pytest.mark.slow
def test_the_installed_package_trains_elsewhere(python, tmp_path):
    fit = ["fit", "-c", "configs/gridworld.yaml", "--trainer.max_steps=1"]
    ran = run(python, "-m", "lightning_cgrpo", *fit, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "runs" / "gridworld" / "version_0" / "config.yaml").is_file()
    command = str(Path(python).with_name("lightning_cgrpo"))
    assert run(command, "--version", cwd=tmp_path).stdout.strip() == lightning_cgrpo.__version__


@pytest.mark.slow
def test_the_job_of_the_readme_runs_from_a_copied_configuration(python, tmp_path):
    command = str(Path(python).with_name("lightning_cgrpo"))
    copied = run(command, "configs", "--copy", "navsim", cwd=tmp_path)
    assert copied.stdout == "Wrote navsim.yaml.\n", copied.stderr
    small = ["--trainer.max_steps=1", "--data.prompts_per_update=2", "--data.val_prompts=2", "--model.group_size=2"]
    ran = run(command, "fit", "-c", "navsim.yaml", *small, "--callbacks.initial_rates=null", cwd=tmp_path)
    assert ran.returncode == 0 and "Run finished" in ran.stdout, ran.stderr


@pytest.mark.slow
def test_what_an_index_shows(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        shown = message_from_bytes(archive.read(name))
    assert shown["Version"] == lightning_cgrpo.__version__ and shown["Requires-Python"] == ">=3.11"
    assert shown["License"] == "Apache-2.0" or shown["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in shown.get_all("Classifier")
    assert set(shown.get_all("Provides-Extra")) >= {"trl", "gymnasium", "lora", "data", "math", "worlds", "wandb"}
    needed = [line for line in shown.get_all("Requires-Dist") if "extra ==" not in line]
    assert needed and all(">=" in line for line in needed), "every bound is a tested one"
    # pyarrow doesn't say which NumPy it needs: without a bound of its own, the lowest NumPy gets a pyarrow that fails.
    listed = shown.get_all("Requires-Dist")
    data, trl = ({line.partition(";")[0] for line in listed if f'"{name}"' in line} for name in ("data", "trl"))
    assert data and data < trl
    # An index renders Markdown, and follows no link into the repository.
    assert shown["Description-Content-Type"] == "text/markdown"
    text = shown.get_payload()
    assert text.startswith("# lightning_cgrpo") and re.findall(r"\]\((?!https?://)", text) == []


@pytest.mark.slow
def test_users_get_types(python, tmp_path):
    """Whatever mypy knows of other packages, which would take it half a minute to read."""
    others = ",".join(f"{name}.*" for name in ("torch", "lightning", "transformers", "torchmetrics", "jsonargparse"))
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-{others}]\nfollow_imports = skip\n")
    (tmp_path / "use.py").write_text(USE)
    checked = run(sys.executable, "-m", "mypy", "--python-executable", python, "use.py", cwd=tmp_path).stdout
    errors = {int(line.split(":")[1]): line for line in checked.splitlines() if ": error:" in line}
    assert errors.keys() == {6, 7} and "lightning_cgrpo.objective.constraint.Constraint" in checked, checked
    assert "[arg-type]" in errors[6] and "RolloutModule" in checked


def test_the_stub_lists_all_exported_names():
    stub = (ROOT / "lightning_cgrpo" / "__init__.pyi").read_text(encoding="utf-8")
    listed = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)}
    assert listed == lightning_cgrpo._EXPORTS


def test_the_changelog_has_the_version():
    assert f"\n## {lightning_cgrpo.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
