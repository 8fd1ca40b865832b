"""The last checkpoint is the end of training, and one that a longer run goes on from exactly."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_cgrpo import Constraint, Look, Objective
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import Checkpoints
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.files import newest
from lightning_cgrpo.run.checkpoints.folder_lock import FolderLock
from tests.callbacks.small_runs import trained
from tests.grids import grid_module
from tests.quiet import CSV, GRIDWORLD, quiet_trainer
from tests.refusals import refused

COMMON = [*GRIDWORLD, *CSV, "--callbacks.checkpoints.every_n_train_steps=4"]


def fit(name, *arguments):
    main(["fit", *COMMON, f"--trainer.logger.name={name}", *arguments])
    return f"runs/{name}/version_0/checkpoints/last.ckpt"


def read(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("updates", [2, 4, 6, 7])  # before, at, and after an interval; 6 is the end of an epoch
def test_last_is_the_end(updates, folder):
    assert read(fit("short", f"--trainer.max_steps={updates}"))["global_step"] == updates
    assert len(list(folder.glob("runs/short/*/checkpoints/last*"))) == 1


def test_a_policy_trained_with_a_reference_is_tested_without(folder):
    path = fit("reference", "--trainer.max_steps=1", "--model.optimization.kl_weight=0.1")
    assert any(name.startswith("reference.") for name in read(path)["state_dict"])
    main(["test", *COMMON, "--data.test_prompts=4", f"--ckpt_path={path}"])


def test_two_callbacks_that_set_weights_are_refused(folder):
    message = refused(fit, "two", "--trainer.max_steps=1", "--callbacks.others=FixedWeights")
    assert "one callback to set the weights" in message and "LagrangianCallback and FixedWeights" in message


def test_the_range_of_a_mean_ranks_no_policies_and_a_look_does(folder):
    """So a resume with a range added later compares its policies with the best before."""

    def ranked_by(look=None, **changes):
        constraint = Constraint(**{"signal": "entropy", "mean_at_least": 0.1, **changes})
        callback = Checkpoints(monitor="val/merit", mode="max")
        objective = Objective("goal", {"a": constraint}, look=look)
        trainer = quiet_trainer(callback, enable_checkpointing=True)
        callback.setup(trainer, grid_module(objective=objective), "fit")
        return callback.state_dict()["ranked_by"]

    assert ranked_by() == ranked_by(range=[0, 1.7]) != ranked_by(mean_at_least=0.2)
    assert "range=None" in ranked_by(range=[0, 1.7]), "as checkpoints without a range have it"
    with_look = ranked_by(Look(500), range=[0, 1.7])  # which the look needs
    assert with_look.endswith(")}), Look(prompts=500, confidence=0.95, chance=0.9)")


def kept(steps=1, ckpt_path=None, folder="kept", callback=None):
    callback = callback or Checkpoints(dirpath=folder, save_last=True, every_n_train_steps=1, save_top_k=-1)
    trained(callback, max_steps=steps, ckpt_path=ckpt_path, val_check_interval=None, limit_val_batches=0)
    return callback


def test_a_folder_with_another_runs_checkpoints_is_refused(folder):
    """Each would overwrite the other's last.ckpt, and a resume would go on with either."""
    kept()
    before = (folder / "kept/last.ckpt").read_bytes()
    for path in (None, "elsewhere/last.ckpt"):
        if path:
            kept(folder="elsewhere")
        with pytest.raises(UserError, match=r"kept' with .*kept/last\.ckpt, .* another dirpath or .* --ckpt_path=last"):
            kept(2, ckpt_path=path)
    assert (folder / "kept/last.ckpt").read_bytes() == before


@pytest.mark.parametrize("path", ["kept/last.ckpt", "last", "kept/epoch=0-step=1.ckpt"])
def test_the_same_run_goes_on_in_its_folder(folder, path):
    kept()
    kept(2, ckpt_path=path)
    assert read(newest([Path("kept")]))["global_step"] == 2


@pytest.mark.parametrize(
    ("options", "logger", "words"),
    [
        ({"dirpath": "kept"}, lambda: False, "kept' with a running fit that writes there"),
        # Both are told the version before the first has written anything.
        (
            *({}, lambda: TensorBoardLogger("runs", "mine", version=3)),
            r"version_3/checkpoints' with a running fit .*\.logger\.version",
        ),
    ],
    ids=["folder", "version"],
)
def test_two_running_fits_share_no_folder_and_no_version(folder, options, logger, words):
    def fit(*callbacks):
        trained(Checkpoints(save_last=True, **options), *callbacks, max_steps=2, logger=logger())

    class Second(Callback):
        def on_train_batch_start(self, *_):
            with pytest.raises(UserError, match=words):
                fit()
            raise ChildProcessError

    with pytest.raises(ChildProcessError):
        fit(Second())
    fit()  # the lock ends with its run


def test_a_lock_is_held_until_it_is_released(tmp_path):
    first, second = FolderLock(), FolderLock()
    assert first.take(tmp_path / "new/folder") and first.take(tmp_path / "new/folder")
    assert not second.take(tmp_path / "new/folder") and second.take(tmp_path / "other")
    first.release()
    second.release()
    assert second.take(tmp_path / "new/folder")
