"""Packaged configurations are listed, and a copy runs where it is."""

from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import PACKAGED
from lightning_cgrpo.errors import UserError


def test_every_configuration_is_listed_with_its_purpose(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    main(["configs"])
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(named) == sorted(file.stem for file in PACKAGED.rglob("*.yaml"))
    assert max(map(len, lines)) <= 100 and any("The paper's gridworld" in line for line in lines)


@pytest.mark.parametrize("name", ["gridworld", "configs/gridworld.yaml", "paper/gsm8k_qwen2_5_7b"])
def test_a_copy_is_the_same_configuration(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    main(["configs", "--copy", name])
    stem = Path(name).stem
    packaged = next(PACKAGED.rglob(f"{stem}.yaml"))
    assert read_arguments("fit", ["-c", f"{stem}.yaml"])[0] == read_arguments("fit", ["-c", str(packaged)])[0]
    with pytest.raises(UserError, match="another folder"):
        main(["configs", "--copy", name])
