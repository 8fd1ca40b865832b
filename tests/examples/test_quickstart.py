"""The cells of the notebook run from first to last, and print what can be read without widgets."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import yaml
from lightning.pytorch.callbacks import Callback

from lightning_cgrpo.callbacks import RunManifest, RunSummary, default_callbacks

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))


def test_default_callbacks_are_those_of_the_command_line():
    declared = yaml.safe_load((ROOT / "configs" / "defaults.yaml").read_text())["callbacks"]
    names = [one["class_path"].rpartition(".")[2] for one in declared.values()]
    given = default_callbacks()
    assert [type(callback).__name__ for callback in given] == [*names, RunManifest.__name__, RunSummary.__name__]
    assert all(isinstance(callback, Callback) for callback in given)
    settings = declared["checkpoints"]["init_args"]
    [checkpoints] = [callback for callback in given if type(callback).__name__ == "Checkpoints"]
    for key, private in {"every_n_train_steps": "_every_n_train_steps", "save_top_k": "save_top_k"}.items():
        assert getattr(checkpoints, private) == settings[key]
    for key in ("filename", "monitor", "mode", "save_last"):
        assert getattr(checkpoints, key) == settings[key]


@pytest.mark.slow
def test_the_notebook(folder, capsys):
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert "UPDATES = 40" in cells[1] and not any(cell.get("outputs") for cell in NOTEBOOK["cells"])
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile(cell.replace("UPDATES = 40", "UPDATES = 2"), "quickstart.ipynb", "exec"), names)
    text = capsys.readouterr().out
    assert "Before training" in text and "Run finished" in text and "best checkpoint" in text
    assert plt.get_fignums(), "a notebook shows pyplot's figures alone"
    plt.close("all")
    assert "\x1b" not in text and "ipywidgets" not in text and "Tip" not in text
