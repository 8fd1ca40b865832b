"""A plain `Trainer` prints rates and multipliers, and the card at the end."""

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import LagrangianCallback, ObjectiveProgressBar, RunSummary, progress, update_lines
from lightning_cgrpo.callbacks.update_lines import UpdateLines, update_line
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module


def run(*callbacks, updates=3, **options):
    module = grid_module({"lava": Constraint(at_most=0.01)}, max_steps=10, task=GridworldTask(cost="sum", rate="steps"))
    trainer = Trainer(
        max_steps=updates, accelerator="cpu", callbacks=[LagrangianCallback(), *callbacks],
        **{"logger": False, "enable_checkpointing": False, **options},
    )  # fmt: skip
    trainer.fit(module, GridworldDataModule(prompts_per_update=4, train_prompts=12, val_prompts=4))
    return trainer


def test_lines_and_the_card_without_a_logger(folder, capsys, monkeypatch):
    monkeypatch.setattr(update_lines, "PAUSE", -1.0)
    run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("Update", "Run", "3 of 3"))]
    assert [line.split(":")[0] for line in lines[:3]] == [f"Update {n} of 3" for n in (1, 2, 3)]
    assert "reward" in lines[0] and "λ 0.5, lava 0." in lines[0] and "0.01 λ 0.5" in lines[0]
    assert lines[3].strip() == "Run finished" and lines[4].startswith("3 of 3 updates, ")
    assert not list(folder.glob("**/summary.json")), "nobody asked for a file"


def test_at_most_a_line_a_second_and_the_last_update(folder, capsys, monkeypatch):
    monkeypatch.setattr(update_lines, "PAUSE", 1e6)
    run(updates=4)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Update")]
    assert [line.split(":")[0] for line in lines] == ["Update 1 of 4", "Update 4 of 4"]


@pytest.mark.parametrize(
    ("callbacks", "options"),
    [([], {"enable_progress_bar": False}), ([ObjectiveProgressBar()], {}), ([RunSummary()], {"logger": "csv"})],
)
def test_nothing_more_where_a_callback_shows_or_the_bar_is_off(folder, capsys, callbacks, options):
    if "logger" in options:
        options = {"logger": CSVLogger("runs")}
    trainer = run(*callbacks, updates=1, **options)
    assert not any(isinstance(callback, UpdateLines) for callback in trainer.callbacks)
    assert ("Run finished" in capsys.readouterr().out) == bool(options.get("logger"))


def test_of_many_constraints_those_furthest_beyond():
    names = [f"signal{number:02}" for number in range(20)]
    objective = Objective("speed", {name: Constraint(at_most=0.1) for name in names})
    latest = {f"rate/{name}": number / 20 for number, name in enumerate(names)} | {"reward/mean": 1.0}
    line = update_line(objective, latest)
    assert line.startswith("reward 1, signal08 0.400 > 0.1, ") and line.count(",") == progress.ROWS
