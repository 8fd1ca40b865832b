"""Made-up runs: in memory, and as folders written with TensorBoard's own writer."""

import copy
import json
from importlib import import_module

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.core.output import SUMMARY, SUMMARY_FORMAT
from lightning_cgrpo.run.identity import identity_of
from lightning_cgrpo.run.record import RunRecord
from lightning_cgrpo.run.runs import Run
from lightning_cgrpo.run.series import Series


@pytest.fixture(autouse=True)
def fonts_in_one_piece(request, monkeypatch):
    """Cutting fonts for a PDF takes half of a report's time."""
    if "shipped_fonts" not in request.fixturenames:
        # The package `figures` has a function named as the module.
        monkeypatch.setitem(import_module("lightning_cgrpo.cli.report.figures.style").RC, "pdf.fonttype", 3)


@pytest.fixture
def shipped_fonts():
    """For tests of PDFs as users get them."""


CONFIG = {
    "seed_everything": 0,
    "trainer": {"max_steps": 100, "devices": 1, "logger": {"init_args": {"save_dir": "runs", "name": "x"}}},
    "model": {
        "class_path": "lightning_cgrpo.ConstrainedGRPO",
        "init_args": {
            "objective": {
                "reward": "goal",
                "constraints": {
                    "lava": {"at_most": 0.1, "at_least": None, "role": "constrain"},
                    "safe": {"at_most": None, "at_least": 0.8, "role": "constrain"},
                },
            },
            "estimator": {"class_path": "lightning_cgrpo.ScalarizedAdvantages"},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}},
            "optimization": {"epochs": 1},
        },
    },
    "data": {"class_path": "lightning_cgrpo.datamodules.GridworldDataModule", "init_args": {}},
    "callbacks": {
        "multipliers": {
            "class_path": "lightning_cgrpo.callbacks.LagrangianCallback",
            "init_args": {
                "controller": {"class_path": "lightning_cgrpo.multipliers.SoftmaxAdam", "init_args": {"lr": 0.01}},
                "stall": {"class_path": "lightning_cgrpo.multipliers.StallDetector"},
                "bounds": None,
            },
        },
        "pictures": {"class_path": "lightning_cgrpo.callbacks.Pictures", "init_args": {"every_n_updates": 5}},
    },
    "ckpt_path": None,
}


def fixed(**weights):
    return {"class_path": "lightning_cgrpo.callbacks.FixedWeights", "init_args": {"weights": weights}}


def changed(changes=None, seed=0):
    """The configuration with changes by dotted path, and a seed."""
    config = copy.deepcopy(CONFIG)
    for path, value in {"seed_everything": seed, **(changes or {})}.items():
        *parents, last = path.split(".")
        node = config
        for key in parents:
            node = node[key]
        node[last] = value
    return config


def bounds(**declared):
    """Constraints of a summary, from ``lava="at_most 0.01"`` or ``lava="mean at_most 3 monitor"``."""
    constraints = {}
    for name, text in declared.items():
        words = text.split()
        kind = words.pop(0) if words[0] == "mean" else "rate"
        role = "monitor" if words[-1] == "monitor" else "constrain"
        constraints[name] = {"kind": kind, "direction": words[0], "threshold": float(words[1]), "role": role}
    return constraints


def summary(constraints=None, seed=0, updates=100, asked=100, config=None, **more):
    identity = identity_of(changed(seed=seed) if config is None else config)
    return {
        "format": SUMMARY_FORMAT,
        "status": "finished" if updates == asked else "running",
        "name": "gridworld",
        **identity,
        "weights": None,
        "resumed": None,
        "constraints": bounds(lava="at_most 0.1", safe="at_least 0.8") if constraints is None else constraints,
        "updates": updates,
        "asked": asked,
        "answers": 64 * updates,
        "faults": {},
        **more,
    }


def made(series=None, final=None, tests=None, width=10.0, **about):
    """A run in memory, with series ``[10]`` over 100 updates."""
    steps = np.arange(10) * 10 + 5.0
    known = {tag: Series(steps, np.array(values, float)) for tag, values in (series or {}).items()}
    return Run(RunRecord.read(summary(**about)), known, final or {}, tests or {}, width)


def method(label, *runs):
    return MethodRuns(label, list(runs))


def standard(updates):
    """Scalars by tag, as functions of the update: the rates come down to their thresholds at update 50."""
    return {
        "reward/mean": lambda u: u / updates,
        "rate/lava": lambda u: 0.3 if u < 50 else 0.08,
        "rate/safe": lambda u: 0.5 if u < 50 else 0.9,
        "threshold/lava": lambda u: 0.1,
        "threshold/safe": lambda u: 0.8,
        **{f"multiplier/{name}": lambda u: 0.2 + 0.001 * u for name in ("reward", "lava", "safe")},
        **{f"effective_weight/{name}": lambda u: 0.4 for name in ("reward", "lava", "safe")},
    }


@pytest.fixture
def make_run(tmp_path):
    """Writes a run's folder, and returns it."""

    def make(where, changes=None, seed=0, start=0, updates=100, asked=100, scalars=None, tests=None, **about):
        folder = tmp_path / where
        folder.mkdir(parents=True, exist_ok=True)
        about = {"name": folder.parent.name, **about}
        about = summary(config=changed(changes, seed), seed=seed, updates=updates, asked=asked, **about)
        (folder / SUMMARY).write_text(json.dumps(about))
        # All events fit into the queue, because the writer's thread would take turns with this one for each otherwise.
        with SummaryWriter(str(folder), max_queue=10_000) as writer:
            for update in range(start, updates):
                for tag, value in (standard(100) if scalars is None else scalars).items():
                    writer.add_scalar(tag, value(update), update)
            for tag, value in (tests or {}).items():
                writer.add_scalar(tag, value, updates)
        return folder

    return make
