"""Packaged configurations are listed, a copy runs where it is, and missing extras are told."""

import re
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.arguments import EXAMPLES, read_arguments
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.core import errors
from lightning_cgrpo.core.errors import MissingExtraError, UserError, install_command
from lightning_cgrpo.settings.configuration import PACKAGED


def test_every_configuration_is_listed_with_its_purpose(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    main(["configs"])
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(named) == sorted(file.stem for file in PACKAGED.rglob("*.yaml"))
    assert max(map(len, lines)) <= 100 and any("The paper's gridworld" in line for line in lines)


@pytest.mark.parametrize("name", ["gridworld", "configs/gridworld.yaml", "paper/gsm8k_qwen2_5_7b"])
def test_a_copy_is_the_same_configuration(folder, name):
    main(["configs", "--copy", name])
    stem = Path(name).stem
    packaged = next(PACKAGED.rglob(f"{stem}.yaml"))
    for here in (["-c", f"{stem}.yaml"], [f"-c{stem}.yaml"], [f"-c={stem}.yaml"]):
        assert read_arguments("fit", here)[0] == read_arguments("fit", ["-c", str(packaged)])[0]
    with pytest.raises(UserError, match="another folder"):
        main(["configs", "--copy", name])


def test_examples_that_configurations_and_pages_name_are_found_from_any_folder(tmp_path, monkeypatch):
    """An installed package has them, though the folder `examples` of the checkout is neither here nor on the path."""
    root = PACKAGED.resolve().parent
    files = [*PACKAGED.rglob("*.yaml"), root / "README.md", *(root / "docs").rglob("*.md")]
    named = {
        path for file in files for path in re.findall(r"examples(?:\.[a-z_]\w*)+(?=\.[A-Z])", file.read_text("utf-8"))
    }
    assert len(named) >= 6
    monkeypatch.chdir(tmp_path)
    hidden = (root, tmp_path, EXAMPLES)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() not in hidden])
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    assert util.find_spec("examples") is None
    read_arguments("fit", ["-c", "configs/gridworld.yaml"])
    assert [path for path in named if util.find_spec(path) is None] == []


def test_a_missing_extra_stops_only_who_names_its_classes(monkeypatch):
    import lightning_cgrpo

    for name in [name for name in sys.modules if name.startswith("lightning_cgrpo.tasks.gymnasium")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    import_names()
    with pytest.raises(MissingExtraError, match=r"\[gymnasium\]"):
        lightning_cgrpo.Gymnasium  # noqa: B018


def test_a_wheel_s_user_is_told_what_its_extra_requires(monkeypatch, tmp_path):
    """A wheel has no checkout for `pip install -e`, and no index has a release."""
    root = Path(errors.__file__).parents[2]
    monkeypatch.chdir(root)
    assert install_command("data") == 'pip install -c "constraints.txt" -e ".[data]"'
    monkeypatch.chdir(root.parent)
    assert install_command("data") == f'pip install -c "{root}/constraints.txt" -e "{root}[data]"'
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lightning_cgrpo/core/errors.py"))
    requires = ["torch>=2.13", 'datasets>=5.2; extra == "data"', 'pyarrow>=26.0; extra == "data"']
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    assert install_command("data") == 'pip install "datasets>=5.2" "pyarrow>=26.0"'
