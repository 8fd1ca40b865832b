"""Values of environment variables are nowhere in what a run writes; their interpolations are."""

from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.run.place import configuration_beside
from lightning_cgrpo.settings.configuration import PACKAGED, Resolved
from tests.run.test_place import EASY, SMALL

SECRET = "s3cret-value"
MODULE = """
from lightning_cgrpo import ConstrainedGRPO

class Mine(ConstrainedGRPO):
    def __init__(self, token: str, rate: float, **arguments):
        super().__init__(**arguments)
        assert (token, rate) == ("s3cret-value", 0.25)
        self.save_hyperparameters("token", "rate")
"""


def test_neither_the_configuration_nor_checkpoints_nor_loggers_hold_a_secret(folder, monkeypatch, capsys):
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("RATE", "0.25")
    monkeypatch.setenv("COST", "sum")
    Path("mine_with_a_secret.py").write_text(MODULE)
    secrets = {"token": "${oc.env:TOKEN}", "rate": "${oc.decode:${oc.env:RATE}}"}
    arguments = yaml.safe_load((PACKAGED / "gridworld.yaml").read_text())["model"]["init_args"]
    arguments["task"]["init_args"]["cost"] = "${oc.env:COST}"
    model = {"class_path": "mine_with_a_secret.Mine", "init_args": arguments | secrets}
    trainer = {"default_root_dir": "/tmp/${oc.env:TOKEN}/x"}
    Path("secret.yaml").write_text(yaml.safe_dump({"model": model, "trainer": trainer}))
    command = ["fit", *SMALL, "-c", "secret.yaml", "--trainer.logger.name=mine", "--trainer.logger+=CSVLogger"]
    main(command)
    with pytest.raises(SystemExit):
        main([*command, "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out.partition("# lightning")[2].partition("\n")[2])
    with suppress(SystemExit):  # undecided
        main(["certify", *SMALL, "-c", "secret.yaml", "--trainer.logger.name=mine", "--prompts=50", *EASY])
    assert "not as in training: model.task" not in capsys.readouterr().out, "an interpolation equals itself"
    # What was written is read again, with the values.
    main(["test", "-c", "runs/mine/version_0/config.yaml", "--data.test_prompts=4"])
    assert Path("runs/mine/version_0/summary.json").is_file()
    files = [Path("looks.jsonl"), *(file for file in Path("runs").rglob("*") if file.is_file())]
    assert len(files) >= 5 and not [file for file in files if SECRET.encode() in file.read_bytes()]
    kept = yaml.safe_load(Path("runs/mine/version_0/config.yaml").read_text())
    for config in (kept, printed):
        assert {name: config["model"]["init_args"][name] for name in secrets} == secrets
        assert config["trainer"]["default_root_dir"] == trainer["default_root_dir"]
    again = configuration_beside("runs/mine/version_0/checkpoints/last.ckpt")
    assert again["model"]["init_args"]["rate"] == 0.25 and again["trainer"]["default_root_dir"] == f"/tmp/{SECRET}/x"


def test_values_that_follow_others_and_defaults(monkeypatch):
    monkeypatch.setenv("TOKEN", SECRET)
    texts = {
        "a": "${oc.env:TOKEN}",
        "b": {"c": ["${a}"]},  # follows the interpolation
        "d": "${oc.env:NONE,x}",
        "e": 1,
        "f": "${e}",
        "g": "${oc.decode:${a}}",
        "h": "${e}/${oc.env:TOKEN}",
    }
    config = Resolved(texts)
    values = {"a": SECRET, "b": {"c": [SECRET]}, "d": "x", "e": 1, "f": 1, "g": SECRET, "h": f"1/{SECRET}"}
    assert config == values
    hidden = texts | {"b": {"c": ["${oc.env:TOKEN}"]}, "f": 1}
    assert config.environment.hidden(config) == hidden
    assert Resolved(hidden) == values  # as a resumed run reads what was written
    # Defaults of classes stay, also in lists that are longer than declared.
    assert config.environment.hidden({"b": {"c": [SECRET, 2], "default": 3}}) == {
        "b": {"c": ["${oc.env:TOKEN}", 2], "default": 3}
    }
    assert config.environment.hidden({"c": [SECRET]}, "b") == {"c": ["${oc.env:TOKEN}"]}
