"""A resume from Python compares the settings of its objects, as a command compares those of its configuration."""

import json
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import Constraint, Optimization, ScalarizedAdvantages
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import Checkpoints, LagrangianCallback, RunManifest
from lightning_cgrpo.callbacks.run_manifest import _described_callbacks
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.multipliers import PID, DampedAscent
from lightning_cgrpo.settings.settings import settings_of
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module
from tests.quiet import GRIDWORLD, quiet_trainer

LAST = "runs/mine/version_0/checkpoints/last.ckpt"


def fit(ckpt_path=None, updates=2, callbacks=(), manifest=None, **changes):
    given = {
        "lr": 1e-3, "max_steps": 20, "cost": "sum", "at_most": 0.01, "group_size": 4, "seed": None,
        "kl_weight": 0.1, "scale": "pooled", "controller": DampedAscent(), "lava": 20, "val_prompts": 6, "sgd": False,
    } | changes  # fmt: skip
    optimizer = torch.optim.SGD if given["sgd"] else torch.optim.Adam
    module = grid_module(
        {"lava": Constraint(at_most=given["at_most"])},
        given["max_steps"],
        task=GridworldTask(cost=given["cost"]),
        optimizer=lambda parameters: optimizer(parameters, lr=given["lr"]),
        estimator=ScalarizedAdvantages(scale=given["scale"]),
        optimization=Optimization(kl_weight=given["kl_weight"]),
        group_size=given["group_size"],
        seed=given["seed"],
    )
    data = GridworldDataModule(4, train_prompts=12, val_prompts=given["val_prompts"], lava=given["lava"])
    own = [LagrangianCallback(given["controller"]), Checkpoints(save_last=True), manifest or RunManifest(), *callbacks]
    options = {"max_steps": updates, "logger": CSVLogger("runs", "mine"), "enable_checkpointing": True}
    quiet_trainer(*own, **options).fit(module, data, ckpt_path=ckpt_path)


@pytest.fixture(scope="module")
def home(made_in_a_folder):
    return made_in_a_folder(fit)


@pytest.fixture(autouse=True)
def there(home, monkeypatch):
    monkeypatch.chdir(home)


def told(capsys):
    printed = capsys.readouterr()
    return re.findall(r"^from update 2: (.*)$", printed.out + printed.err, re.MULTILINE)


class LearningRates(Callback):
    def __init__(self):
        self.rates = []

    def on_train_batch_end(self, trainer, *_):
        self.rates += [group["lr"] for group in trainer.optimizers[0].param_groups]


def test_without_a_schedule_a_resume_has_its_own_learning_rate():
    used = LearningRates()
    fit(LAST, updates=3, lr=2e-3, callbacks=[used])
    assert used.rates == [2e-3]


def test_an_unchanged_resume_tells_its_length_alone(capsys):
    fit(LAST, updates=3)
    assert told(capsys) == ["trainer.max_steps 2 -> 3"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lr": 0.1}, "model.optimizer.lr 0.001 -> 0.1"),
        ({"kl_weight": 0.5}, "model.optimization.kl_weight 0.1 -> 0.5"),
        ({"group_size": 8}, "model.group_size 4 -> 8"),
        ({"at_most": 0.5}, "model.objective.constraints.lava.at_most 0.01 -> 0.5"),
        ({"seed": 7}, "model.seed null -> 7"),
        ({"max_steps": 30}, "model.sampler.environment.max_steps 20 -> 30"),
        ({"cost": "mean"}, "model.task.cost sum -> mean"),
        ({"scale": "group"}, "model.estimator.scale pooled -> group"),
        ({"controller": DampedAscent(margin=0.5)}, "callbacks.LagrangianCallback.controller.margin "),
        ({"lava": 3}, "data.lava 20 -> 3"),
        ({"val_prompts": 8}, "data.val_prompts 6 -> 8"),
    ],
)
def test_each_changed_object_is_told(change, line, capsys):
    fit(LAST, updates=3, **change)
    assert any(found.startswith(line) for found in told(capsys))


@pytest.mark.parametrize("change", [{"sgd": True}, {"controller": PID()}])
def test_what_no_state_continues_is_refused(change):
    with pytest.raises(UserError, match="Expected"):
        fit(LAST, updates=3, **change)


def test_a_commands_run_and_pythons_compare_model_and_data(capsys):
    main(["fit", *GRIDWORLD, "--trainer.logger.name=command", "--trainer.max_steps=2"])
    last = "runs/command/version_0/checkpoints/last.ckpt"
    with pytest.raises(UserError, match="a checkpoint with multipliers of"):
        fit(last, updates=3, kl_weight=0.0)
    lines = told(capsys)
    assert "model.objective.constraints.battery.at_most 0.01 -> unset" in lines
    assert not [line for line in lines if line.startswith(("callbacks", "trainer", "model.policy ", "data "))]


def test_a_callback_of_two_fits_tells_each():
    kept = RunManifest()
    names = []
    for size in (4, 2):
        fit(updates=1, manifest=kept, group_size=size)
        newest = max(Path("runs/mine").glob("version_*/manifest.json"), key=lambda file: int(file.parent.name[8:]))
        assert json.loads(newest.read_text())["settings"]["model.group_size"] == size
        names.append(kept.manifest.name)
    assert names[0] != names[1] and kept.manifest.lineage == (names[1],)


def test_two_callbacks_of_a_class_are_two_settings():
    first, second = (LagrangianCallback(PID(kp=weight)) for weight in (1.0, 2.0))
    found = settings_of({"callbacks": _described_callbacks([first, Checkpoints(), second])})
    weights = [value for key, value in found.items() if key.endswith(".kp")]
    assert weights == [1.0, 2.0] and "callbacks.LagrangianCallback_2" in found
