"""A validation that a resumed run repeats is counted once, as in a run that nothing interrupted."""

from pathlib import Path

import pytest
import torch

from benchmarks.run_differences import final, logs
from lightning_cgrpo.callbacks import Checkpoints
from tests.callbacks.small_runs import Stop, Terminate, trained
from tests.test_resume import assert_identical


def run(name, *callbacks, **options):
    checkpoints = Checkpoints(every_n_train_steps=2, save_last=True, filename="{step}")
    trained(*callbacks, checkpoints, name=name, prompts=40, val_check_interval=3, **options)


@pytest.fixture(scope="module")
def whole(made_in_a_folder):
    """Two validations in an epoch of ten updates, the second one right after a checkpoint."""
    folder = made_in_a_folder(lambda: run("run"))
    return final(folder), logs(folder / "runs/run/version_0")


ENDS = {
    "before the second": (Stop, 6, "validation"),
    "after the second": (Stop, 7, "update"),
    "in its first batch": (Terminate, 6, 0),
    "in its last batch": (Terminate, 6, 1),
    "in the first one": (Terminate, 3, 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_whole_checkpoint_is_the_same(folder, whole, end):
    kind, *when = ENDS[end]
    with pytest.raises((ChildProcessError, SystemExit)):
        run("run", kind(*when))
    run("run", ckpt_path="last")
    assert_identical(final(folder), whole[0])
    counted = whole[0]["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]["total"]
    assert set(counted.values()) == {4}, "two batches of two validations"
    logged = logs(Path("runs/run/version_0")) | logs(Path("runs/run/version_1"))
    assert logged == whole[1]
    assert torch.load("runs/run/version_1/checkpoints/last.ckpt", weights_only=True)["global_step"] == 8
