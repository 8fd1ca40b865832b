"""Every option of Lightning's Trainer works, or is refused by name; docs/configuration.md has the same table."""

import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler, ModelPruning
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_cgrpo import Constraint
from lightning_cgrpo.callbacks import Checkpoints, LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import GridworldDataModule
from tests.grids import grid_module

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES = 3
"""Updates in an epoch."""
REFUSALS = (UserError, MisconfigurationException, ValueError)
"""Ours, and Lightning's; both come before the first update."""


class StopsAtOnce(Callback):
    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = True


@dataclass(frozen=True)
class Works:
    """The option does what Lightning says of it, beside other options: the run makes so many updates.

    `same`: the policy's weights are those of a run without the option.
    """

    value: Any
    updates: int = 4
    same: bool = True
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """The option ends the run before its first update, with words that name the option."""

    value: Any
    words: str
    beside: dict[str, Any] = field(default_factory=dict)


EPOCHS = {"max_steps": -1, "max_epochs": 3}
EVERY_UPDATES = {"check_val_every_n_epoch": None}
OPTIONS = {
    "accelerator": [Works("cpu")],
    "strategy": [Works(SingleDeviceStrategy("cpu"))],
    "devices": [Works(1)],
    "num_nodes": [Works(1)],
    "precision": [Works("64-true", same=False), Works("bf16-mixed", same=False), Refused("16-true", "precision")],
    "logger": [Works(True), Works(CSVLogger("logs"))],
    "callbacks": [
        Works([LagrangianCallback()]),
        Works([EMAWeightAveraging(decay=0.5, use_buffers=False)], same=False),
        Refused([EMAWeightAveraging()], "WeightAveraging with weights in shards", beside={"strategy": "fsdp2"}),
        Refused([GradientAccumulationScheduler({0: 2})], "GradientAccumulationScheduler"),
        Refused([ModelPruning("l1_unstructured", amount=0.5)], "ModelPruning"),
    ],
    "fast_dev_run": [Works(True, updates=1, same=False), Works(2, updates=2, same=False)],
    "max_epochs": [Works(2, updates=6, same=False, beside={"max_steps": -1}), Works(1, updates=3, same=False)],
    "min_epochs": [Works(2, updates=6, same=False, beside={"max_steps": 8, "callbacks": [StopsAtOnce()]})],
    "max_steps": [Works(5, updates=5, same=False), Works(0, updates=0, same=False)],
    "min_steps": [Works(5, updates=5, same=False, beside={"max_steps": 8, "callbacks": [StopsAtOnce()]})],
    "max_time": [Works({"minutes": 10}), Works("00:00:00:00", updates=0, same=False)],
    "limit_train_batches": [
        Works(2, updates=6, same=False, beside=EPOCHS),
        Works(0.5, updates=3, same=False, beside=EPOCHS),
        Works(1, updates=3, same=False, beside=EPOCHS),
        Works(50),
        Refused(0, "limit_train_batches"),
        Refused(0.1, "limit_train_batches"),
    ],
    "limit_val_batches": [Works(1), Works(0.5), Works(0)],
    "limit_test_batches": [Works(1)],
    "limit_predict_batches": [Works(1)],
    "overfit_batches": [Refused(1, "overfit_batches")],
    "val_check_interval": [
        Works(2, beside=EVERY_UPDATES),
        Works("00:00:00:01", beside=EVERY_UPDATES),
        Works(0.34),
        Refused(BATCHES + 1, "val_check_interval"),
    ],
    "check_val_every_n_epoch": [Works(2), Works(None, beside={"val_check_interval": 2})],
    "num_sanity_val_steps": [Works(0), Works(-1)],
    "log_every_n_steps": [Works(2), Works(0)],
    "enable_checkpointing": [Works(True), Works(True, beside={"callbacks": [Checkpoints(save_last=True)]})],
    "enable_progress_bar": [Works(True)],
    "enable_model_summary": [Works(True)],
    "accumulate_grad_batches": [Refused(2, "accumulate_grad_batches")],
    "gradient_clip_val": [Refused(1.0, "gradient_clip_val")],
    "gradient_clip_algorithm": [Refused("value", "gradient_clip_algorithm")],
    "deterministic": [Works(True)],
    "benchmark": [Works(True)],
    "inference_mode": [Works(False)],
    "use_distributed_sampler": [Works(False)],
    "profiler": [Works("simple")],
    "detect_anomaly": [Works(True)],
    "barebones": [Works(True)],
    "plugins": [Works([TorchCheckpointIO()])],
    "sync_batchnorm": [Works(True)],
    "reload_dataloaders_every_n_epochs": [Works(1)],
    "default_root_dir": [Works("elsewhere")],
    "enable_autolog_hparams": [Works(False)],
    "model_registry": [Refused("team/model", "model_registry")],
}


def trained(ckpt_path=None, **options):
    """Updates of a run, and the policy's weights after it."""
    module = grid_module({"lava": Constraint(at_most=0.01)}, max_steps=5, lr=1e-2)
    data = GridworldDataModule(prompts_per_update=4, train_prompts=4 * BATCHES, val_prompts=8, eval_prompts=4)
    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    usual = {"accelerator": "cpu", "devices": 1, "max_steps": 4, **off}
    given = options.pop("callbacks", [])
    setter = [] if any(isinstance(one, LagrangianCallback) for one in given) else [LagrangianCallback()]
    trainer = Trainer(callbacks=[*setter, *given], **{**usual, **options})
    try:
        trainer.fit(module, data, ckpt_path=ckpt_path)
    finally:
        torch.use_deterministic_algorithms(False)
    return trainer.global_step, torch.nn.utils.parameters_to_vector(module.policy.parameters()).detach()


@pytest.fixture(scope="module")
def plain():
    return trained()[1]


def test_the_table_has_every_option_of_lightning_and_no_other():
    """A new version's option needs a row: a run with the option, or a refusal."""
    assert set(OPTIONS) == set(inspect.signature(Trainer).parameters)


CASES = [(name, case) for name, cases in OPTIONS.items() for case in cases]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}={case.value}"[:60] for name, case in CASES])
def test_an_option_works_or_is_refused_by_name(folder, plain, name, case):
    options = {**case.beside, name: case.value}
    if isinstance(case, Refused):
        with pytest.raises(REFUSALS, match=case.words):
            trained(**options)
        return
    updates, weights = trained(**options)
    assert updates == case.updates
    assert not case.same or torch.equal(weights, plain)


def test_the_page_has_the_same_table():
    rows = re.findall(r"^\| `(\w+)` \| (works|refused|in part) \|", PAGE.read_text(encoding="utf-8"), re.M)
    answers = {True: "works", False: "refused"}
    expected = {}
    for name, cases in OPTIONS.items():
        kinds = {isinstance(case, Works) for case in cases}
        expected[name] = answers[kinds.pop()] if len(kinds) == 1 else "in part"
    assert dict(rows) == expected


class Seen(Callback):
    """The prompts of each update."""

    def __init__(self):
        self.prompts = []

    def on_train_batch_start(self, trainer, module, batch, *_):
        self.prompts.append(batch.index.tolist())


def test_limited_epochs_begin_new_passes():
    """Two of three batches make an epoch: each epoch shuffles anew, repeats no prompt, and all prompts are seen."""
    seen = Seen()
    updates, _ = trained(limit_train_batches=2, max_epochs=6, max_steps=-1, callbacks=[seen])
    assert updates == len(seen.prompts) == 12
    epochs = [seen.prompts[first] + seen.prompts[first + 1] for first in range(0, 12, 2)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert {prompt for epoch in epochs for prompt in epoch} == set(range(4 * BATCHES))


@pytest.mark.parametrize("first", [pytest.param(3, marks=pytest.mark.slow), 4])  # within an epoch, and at its end
def test_a_limited_run_resumes_to_the_bit(folder, first):
    limits = {"limit_train_batches": 2, "max_epochs": 4}
    _, whole = trained(**limits, max_steps=-1)
    parts = {"enable_checkpointing": True, "callbacks": [Checkpoints(dirpath="kept", save_last=True)]}
    assert trained(**limits, **parts, max_steps=first)[0] == first
    updates, resumed = trained(ckpt_path="kept/last.ckpt", **limits, max_steps=-1)
    assert updates == 8
    assert torch.equal(resumed, whole)
