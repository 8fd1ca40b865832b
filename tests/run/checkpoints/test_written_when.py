"""What a run has written when it is ended or killed, and that nothing else is left."""

import shutil
import signal
from pathlib import Path

import pytest
import torch

from benchmarks.run_differences import logs
from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles
from tests.quiet import AVERAGED, CSV, GRIDWORLD
from tests.run.checkpoints.full_disk_worker import little_room

ARGUMENTS = [
    *GRIDWORLD, *CSV, "--trainer.max_steps=5", "--trainer.val_check_interval=2", "--data.val_prompts=8",
    "--callbacks.layout=null",
]  # fmt: skip


def fit(name, *arguments):
    main(["fit", *ARGUMENTS, f"--trainer.logger.name={name}", *arguments])


def terminated(update, validation=False):
    """By SIGTERM in an update, or in the first batch of the validation after it."""
    when = {"update": update + validation, "batch": 0 if validation else "null"}
    terminate = "--callbacks.terminate"
    return f"{terminate}=tests.callbacks.small_runs.Terminate", *(f"{terminate}.{k}={v}" for k, v in when.items())


def logged(name):
    """By update and tag, over all versions; but how long anything took."""
    return {key: value for path in sorted(Path(f"runs/{name}").iterdir()) for key, value in logs(path).items()}


def last(name, version):
    return torch.load(f"runs/{name}/version_{version}/checkpoints/last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def whole(made_in_a_folder):
    found = []
    made_in_a_folder(lambda: found.extend((fit("whole"), logged("whole"), last("whole", 0))))
    return found[1:]


@pytest.mark.parametrize(("update", "validation"), [(2, False), (1, False), (1, True)])
def test_sigterm_saves_and_the_rest_is_what_it_would_have_been(folder, whole, update, validation):
    """In an update; before a validation; in the first batch of one. No checkpoint is due by itself."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        fit("parts", *terminated(update, validation))
    assert ended.value.code == 143
    assert last("parts", 0)["global_step"] == update + 1
    assert signal.getsignal(signal.SIGTERM) == before
    assert not any(tag.startswith("val/") and int(step) >= update for step, tag in logged("parts"))
    fit("parts", "--ckpt_path=last")
    assert logged("parts") == whole[0] and sum(tag == "val/rate/lava" for _, tag in whole[0]) == 2
    for name, tensor in whole[1]["state_dict"].items():
        assert torch.equal(last("parts", 1)["state_dict"][name], tensor)


def test_sigterm_within_a_validation_of_an_average(folder):
    """The average is in the policy then, and the latest weights are where the average was."""
    fit("whole", *AVERAGED)
    with pytest.raises(SystemExit):  # without save_last, no checkpoint is written before the validation
        fit("parts", *AVERAGED, "--callbacks.checkpoints.save_last=null", *terminated(1, validation=True))
    fit("parts", *AVERAGED, "--ckpt_path=last")
    assert logged("parts") == logged("whole")
    for weights in ("state_dict", "current_model_state"):
        for name, tensor in last("whole", 0)[weights].items():
            assert torch.equal(last("parts", 1)[weights][name], tensor)


@pytest.mark.parametrize("every", [2, 10])
def test_sigterm_saves_without_save_last(folder, every):
    """Also where another checkpoint has been written after this update."""
    given = ["--callbacks.checkpoints.save_last=null", f"--callbacks.checkpoints.every_n_train_steps={every}"]
    with pytest.raises(SystemExit):
        fit("parts", *given, *terminated(1))
    assert last("parts", 0)["global_step"] == 2


def test_sigterm_in_the_last_update_ends_as_usual(folder, whole):
    fit("parts", *terminated(4))
    assert last("parts", 0)["global_step"] == 5 and logged("parts") == whole[0]


@pytest.mark.usefixtures("folder")
def test_what_a_killed_run_has_left_is_removed_when_it_goes_on():
    """By a run that writes to another folder itself, but nothing in a folder that isn't of checkpoints."""
    fit("run", "--trainer.max_steps=2")
    folder, elsewhere = Path("runs/run/version_0/checkpoints"), Path("downloads")
    shutil.copytree(folder, elsewhere)
    for where in (folder, elsewhere):
        (where / "last.unfinished").mkdir()
        (where / "last.unfinished" / "part").touch()
        (where / "step=4.unfinished").touch()
    before = {path.name for path in folder.iterdir()}
    fit("run", "--trainer.max_steps=3", f"--ckpt_path={elsewhere / 'last.ckpt'}")
    for where in (folder, elsewhere):
        assert {path.name for path in where.iterdir()} == before
    fit("run", "--trainer.max_steps=3", f"--ckpt_path={folder / 'last.ckpt'}")
    assert {path.name for path in folder.iterdir()} == before - {"last.unfinished", "step=4.unfinished"}


def test_logs_are_on_the_disk_before_a_checkpoint_is(folder, monkeypatch):
    """Lightning's CSVLogger writes every hundred updates, and TensorBoard's every two minutes."""
    seen = []
    saved = CheckpointFiles.save_checkpoint

    def spy(self, checkpoint, path, storage_options=None):
        seen.append((checkpoint["global_step"], {int(step) for step, tag in logged("run") if tag == "rate/lava"}))
        saved(self, checkpoint, path, storage_options)

    monkeypatch.setattr(CheckpointFiles, "save_checkpoint", spy)
    fit("run", "--callbacks.checkpoints.every_n_train_steps=2")
    assert {step for step, _ in seen} == {2, 4, 5}
    assert all(updates == set(range(step)) for step, updates in seen)


def test_a_disk_that_fills_up_while_logs_are_written_ends_the_run_in_one_line(folder, monkeypatch, capsys):
    """TensorBoard's writer is a thread, whose error the next metrics meet."""
    given = [a for a in ARGUMENTS if "logger=" not in a and "max_steps" not in a]
    # No checkpoint before the logs have filled the room.
    given += ["--trainer.max_steps=400", "--callbacks.checkpoints.every_n_train_steps=1000"]
    given += ["--trainer.limit_val_batches=0"]
    monkeypatch.setattr("sys.argv", ["lightning_cgrpo", "fit", *given, "--trainer.logger.name=full"])
    with little_room(30_000), pytest.raises(SystemExit, match="2"):
        command_line.run()
    assert "error: Expected room on the disk, but got: [Errno 27] File too large" in capsys.readouterr().err
