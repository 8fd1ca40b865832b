"""Checkpoints on disk: whole or not there, damaged ones refused, no code in them; and what is in them when."""

import os
import pickle
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from benchmarks.kill_loop import logs
from lightning_cgrpo import __main__ as command_line
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.checkpoints.damage import check_checkpoint, find_damage
from lightning_cgrpo.checkpoints.files import newest
from lightning_cgrpo.checkpoints.plugin import CheckpointFiles
from lightning_cgrpo.checkpoints.replacement import remove_unfinished, replace_checkpoint
from lightning_cgrpo.cli.run_folders import find_checkpoint, last_checkpoint
from lightning_cgrpo.core.errors import UserError
from tests.checkpoints.full_disk_worker import little_room
from tests.quiet import CSV, GRIDWORLD

CONTENT = {"state_dict": {"weight": torch.arange(3000.0)}, "global_step": 3}
ARGUMENTS = [
    *GRIDWORLD, *CSV, "--trainer.max_steps=5", "--trainer.val_check_interval=2", "--data.val_prompts=8",
    "--callbacks.layout=null",
]  # fmt: skip


def test_a_write_that_fails_leaves_the_former_whole_and_nothing_else(tmp_path):
    files, path = CheckpointFiles(), tmp_path / "last.ckpt"
    files.save_checkpoint({"global_step": 1}, path)
    with little_room(5000), pytest.raises(UserError, match=r"write the checkpoint '.*last.ckpt', .* try to free space"):
        files.save_checkpoint(CONTENT, path)
    assert files.load_checkpoint(path) == {"global_step": 1}
    assert list(tmp_path.iterdir()) == [path]
    files.save_checkpoint(CONTENT, path)
    assert torch.equal(torch.load(path, weights_only=True)["state_dict"]["weight"], CONTENT["state_dict"]["weight"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_no_error_leaves_an_unfinished_file(tmp_path, monkeypatch, error):
    """`Checkpoints` asks for a name that is unfinished already."""

    def interrupted(content, file):
        file.write(b"PK")
        raise error

    monkeypatch.setattr(torch, "save", interrupted)
    for name in ("last.ckpt", "last.unfinished"):
        with pytest.raises(UserError if error is OSError else error):
            CheckpointFiles().save_checkpoint(CONTENT, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_nothing_has_the_name_before_it_is_on_the_disk(tmp_path, monkeypatch):
    files, path = CheckpointFiles(), tmp_path / "last.ckpt"
    files.save_checkpoint({"global_step": 1}, path)
    synced = []

    def sync(number):
        synced.append(number)
        assert torch.load(path, weights_only=True) == {"global_step": 1}
        assert find_damage(next(tmp_path.glob("*.unfinished"))) is None, "and all of it is written"

    monkeypatch.setattr(os, "fsync", sync)
    files.save_checkpoint(CONTENT, path)
    assert len(synced) == 1


@pytest.mark.parametrize("kind", ["file", "directory", "former directory"])
def test_what_another_run_is_writing_is_left(tmp_path, kind):
    """Also a directory that was written long ago, and has just given way."""
    path = tmp_path / "last.unfinished"
    if kind == "file":
        path.touch()
    else:
        before = tmp_path / "last.ckpt" if kind == "former directory" else path
        before.mkdir()
        (before / "part").touch()
        began = time.time() - 60
        os.utime(before, (began - 60, began - 60))
        os.utime(before / "part", (began - 60, began - 60))
        path = before.rename(tmp_path / "last.ckpt.former.unfinished") if kind == "former directory" else path
        (tmp_path / "last.ckpt").touch()  # so that it isn't put back
    remove_unfinished(tmp_path, before=time.time() - 60)
    assert path.exists()
    remove_unfinished(tmp_path, before=time.time() + 60)
    assert not path.exists()


@pytest.mark.parametrize("command", ["fit", "last", "named"])
def test_a_kill_between_the_names_of_two_directories_costs_nothing(tmp_path, monkeypatch, command):
    folder = tmp_path / "runs" / "version_0" / "checkpoints"
    target = folder / "last.ckpt"
    for path in (target, folder / "last.unfinished"):
        path.mkdir(parents=True)
        (path / "meta.pt").write_text(path.name)
    rename = Path.rename

    def killed(self, to):
        if self.name == "last.unfinished":
            raise KeyboardInterrupt
        return rename(self, to)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        replace_checkpoint(folder / "last.unfinished", target)
    assert not target.exists()
    if command == "fit":
        remove_unfinished(folder)
        assert [entry.name for entry in folder.iterdir()] == ["last.ckpt"]
    elif command == "last":
        logger = {"init_args": {"save_dir": str(tmp_path), "name": "runs"}}
        assert last_checkpoint({"trainer": {"logger": logger}}) == target
    else:
        assert (
            find_checkpoint("fit", {"ckpt_path": str(target)})
            == f"Resuming from {target} (--ckpt_path=null starts anew)."
        )
    assert (target / "meta.pt").read_text() == "last.ckpt"


def test_looking_for_a_directory_while_it_gets_its_name_does_no_harm(tmp_path, monkeypatch):
    """Another process puts the former back between the two steps."""
    target, former = tmp_path / "last.ckpt", tmp_path / "last.ckpt.former.unfinished"
    for path in (target, tmp_path / "new"):
        path.mkdir()
        (path / "meta.pt").write_text(path.name)
    rename, looked = Path.rename, []

    def meanwhile(self, to):
        if self.name == "new" and not looked:
            looked.append(rename(former, target))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", meanwhile)
    replace_checkpoint(tmp_path / "new", target)
    assert looked and (target / "meta.pt").read_text() == "new" and list(tmp_path.iterdir()) == [target]


def saved(name, updates):
    """A checkpoint; later ones have older files."""
    path = Path("runs/run", name)
    CheckpointFiles().save_checkpoint({"global_step": updates, "callbacks": {}}, path)
    os.utime(path, (2e9 - saved.age, 2e9 - saved.age))
    saved.age += 1
    return path


saved.age = 0


def newest_of_run():
    return newest(Path("runs/run").glob("*/checkpoints"))


def test_the_last_version_has_the_newest_checkpoint_unless_another_is_longer(folder):
    """Whatever the times of the files."""
    saved("version_9/checkpoints/last.ckpt", 6)
    last = saved("version_10/checkpoints/last.ckpt", 6)
    saved("version_9 (copy)/checkpoints/last.ckpt", 6)
    (folder / "runs/run/version_11/checkpoints").mkdir(parents=True)  # killed before its first checkpoint
    assert newest_of_run() == last
    saved("version_9/checkpoints/last.ckpt", 8)
    with pytest.raises(UserError, match=r"version_10/.* after update 6 and '.*version_9/.* after update 8, try"):
        newest_of_run()


def test_without_versions_the_most_updates_count(folder):
    """As in folders named by Weights & Biases."""
    saved("b83k/checkpoints/last.ckpt", 8)
    last = saved("a7x1/checkpoints/last.ckpt", 10)
    assert newest_of_run() == last


def test_in_one_folder_last_is_the_newest(folder):
    """A second run without a logger writes over the first; without save_last, the largest number of updates counts."""
    step = saved("version_0/checkpoints/step=10.ckpt", 10)
    assert newest([step.parent]) == step
    last = saved("version_0/checkpoints/last.ckpt", 3)
    assert newest([step.parent]) == last


def test_a_damaged_newest_is_not_passed_over(folder):
    first = saved("version_0/checkpoints/last.ckpt", 2)
    last = saved("version_1/checkpoints/last.ckpt", 6)
    content = last.read_bytes()
    last.write_bytes(content[:100])
    assert newest_of_run() == last
    last.write_bytes(content)
    first.write_bytes(b"PK")
    assert newest_of_run() == last


def test_every_changed_bit_and_every_missing_end_is_noticed_or_harmless(tmp_path):
    """torch loads a changed weight as it is, and fails in many ways where the archive's structure is changed."""
    whole, broken = tmp_path / "whole.ckpt", tmp_path / "broken.ckpt"
    content = {"state_dict": {"weight": torch.arange(30.0)}, "global_step": 3}
    CheckpointFiles().save_checkpoint(content, whole)
    assert find_damage(whole) is None
    raw, draw, noticed = whole.read_bytes(), random.Random(0), 0
    start = raw.index(content["state_dict"]["weight"].numpy().tobytes())
    weight = range(start, start + 120)
    for place in [*draw.sample(weight, 20), *draw.sample(range(len(raw)), 350)]:
        changed = bytearray(raw)
        changed[place] ^= 1 << draw.randrange(8)
        broken.write_bytes(changed)
        if find_damage(broken):
            noticed += 1
        else:
            assert place not in weight
            assert torch.equal(CheckpointFiles().load_checkpoint(broken)["state_dict"]["weight"], torch.arange(30.0))
    assert noticed > 100
    for length in (0, 1, 100, len(raw) // 2, len(raw) - 1):
        broken.write_bytes(raw[:length])
        assert find_damage(broken)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(folder, monkeypatch, capsys):
    folders = [folder / f"runs/gridworld/version_{number}/checkpoints" for number in (0, 1)]
    for age, path in enumerate([folders[1] / "last.ckpt", folders[1] / "step=4.ckpt", folders[0] / "last.ckpt"]):
        CheckpointFiles().save_checkpoint(CONTENT, path)
        os.utime(path, (1e9 - age, 1e9 - age))

    def refused(*arguments):
        check_checkpoint.cache_clear()
        monkeypatch.setattr(
            "sys.argv", ["lightning_cgrpo", "fit", *ARGUMENTS, "--trainer.logger.name=gridworld", *arguments]
        )
        with pytest.raises(SystemExit, match="2"):
            command_line.run()
        return capsys.readouterr().err

    (folders[1] / "last.ckpt").write_bytes(b"PK")
    os.utime(folders[1] / "last.ckpt", (1e9, 1e9))
    message = refused("--ckpt_path=last")
    assert message.startswith("lightning_cgrpo: error: Expected 'runs/gridworld/version_1/checkpoints/last.ckpt' to be")
    assert (
        "damaged (File is not a zip file), try --ckpt_path=runs/gridworld/version_1/checkpoints/step=4.ckpt" in message
    )
    (folders[1] / "step=4.ckpt").write_bytes(b"PK")
    assert "try --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt" in refused("--ckpt_path=last")
    (folders[0] / "last.ckpt").unlink()
    assert "there is no other one" in refused(f"--ckpt_path={folders[1]}/last.ckpt")


class Code:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_checkpoint_is_not_run(folder, how):
    path = folder / "evil.ckpt"
    if how == "torch":
        torch.save({"state_dict": Code()}, path)
    else:
        path.write_bytes(pickle.dumps({"state_dict": Code()}))
    with pytest.raises(UserError, match="tensors and plain containers" if how == "torch" else "damaged"):
        main(["fit", *ARGUMENTS, f"--ckpt_path={path}"])
    with pytest.raises(UserError, match="tensors and plain containers" if how == "torch" else "damaged"):
        CheckpointFiles().load_checkpoint(path)
    assert not Path("executed").exists()


class Terminate(Callback):
    """Sends SIGTERM to its own process in an update, or in a batch of the validation after it."""

    def __init__(self, update: int, validation: bool = False):
        self.update, self.validation, self.waiting = update, validation, True

    def on_train_batch_start(self, trainer, *args):
        self._send(trainer, not self.validation and trainer.global_step == self.update)

    def on_validation_batch_start(self, trainer, *args):
        self._send(trainer, self.validation and trainer.global_step == self.update + 1)

    def _send(self, trainer, now):
        if now and self.waiting:
            self.waiting = False
            os.kill(os.getpid(), signal.SIGTERM)


def fit(name, *arguments):
    main(["fit", *ARGUMENTS, f"--trainer.logger.name={name}", *arguments])


def terminated(update, validation=False):
    terminate = f"--callbacks.terminate={__name__}.Terminate"
    return terminate, f"--callbacks.terminate.update={update}", f"--callbacks.terminate.validation={validation}"


def logged(name):
    """By update and tag, over all versions; but how long anything took."""
    return {key: value for path in sorted(Path(f"runs/{name}").iterdir()) for key, value in logs(path).items()}


def last(name, version):
    return torch.load(f"runs/{name}/version_{version}/checkpoints/last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, here = tmp_path_factory.mktemp("whole"), Path.cwd()
    os.chdir(folder)
    try:
        fit("whole")
        return logged("whole"), last("whole", 0)
    finally:
        os.chdir(here)


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


def test_what_a_killed_run_has_left_is_removed_when_it_goes_on(tmp_path, monkeypatch):
    """By a run that writes to another folder itself, but nothing in a folder that isn't of checkpoints."""
    monkeypatch.chdir(tmp_path)
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
    given += [
        "--trainer.max_steps=400",
        "--callbacks.checkpoints.every_n_train_steps=1000",
        "--trainer.limit_val_batches=0",
    ]
    monkeypatch.setattr("sys.argv", ["lightning_cgrpo", "fit", *given, "--trainer.logger.name=full"])
    with little_room(30_000), pytest.raises(SystemExit, match="2"):
        command_line.run()
    assert "error: Expected room on the disk, but got: [Errno 27] File too large" in capsys.readouterr().err
