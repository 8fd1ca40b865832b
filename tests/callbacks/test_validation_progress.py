"""A validation that a resumed run repeats is counted once, as in a run that nothing interrupted."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from benchmarks.run_differences import final, logs
from lightning_cgrpo.callbacks import Checkpoints
from tests.callbacks.small_runs import Stop, trained
from tests.test_resume import assert_identical


class Terminate(Callback):
    """SIGTERM in a batch of a validation."""

    def __init__(self, update, batch):
        self.at = update, batch

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, *_):
        if (trainer.global_step, batch_idx) == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


def run(name, *callbacks, **options):
    checkpoints = Checkpoints(every_n_train_steps=2, save_last=True, filename="{step}")
    trained(*callbacks, checkpoints, name=name, prompts=40, val_check_interval=3, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two validations in an epoch of ten updates, the second one right after a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("run")
        return final(folder), logs(folder / "runs/run/version_0")


@pytest.mark.parametrize(
    "end",
    [
        lambda: Stop(6, "validation"),
        lambda: Stop(7, "update"),
        lambda: Terminate(6, 0),
        lambda: Terminate(6, 1),
        lambda: Terminate(3, 0),
    ],
    ids=["before the second", "after the second", "in its first batch", "in its last batch", "in the first one"],
)
def test_the_whole_checkpoint_is_the_same(folder, whole, end):
    with pytest.raises((ChildProcessError, SystemExit)):
        run("run", end())
    run("run", ckpt_path="last")
    assert_identical(final(folder), whole[0])
    counted = whole[0]["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]["total"]
    assert set(counted.values()) == {4}, "two batches of two validations"
    logged = logs(Path("runs/run/version_0")) | logs(Path("runs/run/version_1"))
    assert logged == whole[1]
    assert torch.load("runs/run/version_1/checkpoints/last.ckpt", weights_only=True)["global_step"] == 8
