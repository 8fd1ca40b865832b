"""Checkpoints on disk: whole or not there, damaged ones refused, no code in them."""

import os
import pickle
import random
import time
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.damage import check_checkpoint, find_damage
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles
from lightning_cgrpo.run.checkpoints.replacement import remove_unfinished, replace_checkpoint
from lightning_cgrpo.run.place import Place, _last_checkpoint, find_checkpoint
from tests.quiet import CSV, GRIDWORLD
from tests.refusals import refused
from tests.run.checkpoints.full_disk_worker import little_room

CONTENT = {"state_dict": {"weight": torch.arange(3000.0)}, "global_step": 3}
ARGUMENTS = [*GRIDWORLD, *CSV, "--trainer.max_steps=5"]


def last_of(config):
    return _last_checkpoint(Place.of(config))


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
        assert last_of({"trainer": {"logger": logger}}) == target
    else:
        told = find_checkpoint("fit", {"ckpt_path": str(target)})
        assert told == f"Resuming from {target} (--ckpt_path=null starts anew)."
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


def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(folder):
    folders = [folder / f"runs/gridworld/version_{number}/checkpoints" for number in (0, 1)]
    for age, path in enumerate([folders[1] / "last.ckpt", folders[1] / "step=4.ckpt", folders[0] / "last.ckpt"]):
        CheckpointFiles().save_checkpoint(CONTENT, path)
        os.utime(path, (1e9 - age, 1e9 - age))

    def message(path):
        check_checkpoint.cache_clear()
        return refused(main, ["fit", *ARGUMENTS, "--trainer.logger.name=gridworld", f"--ckpt_path={path}"])

    (folders[1] / "last.ckpt").write_bytes(b"PK")
    os.utime(folders[1] / "last.ckpt", (1e9, 1e9))
    last = "runs/gridworld/version_1/checkpoints/last.ckpt"
    told = f"Expected '{last}' to be a whole checkpoint, but it is damaged (File is not a zip file), try --ckpt_path="
    assert message("last").startswith(f"{told}runs/gridworld/version_1/checkpoints/step=4.ckpt")
    (folders[1] / "step=4.ckpt").write_bytes(b"PK")
    assert "try --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt" in message("last")
    (folders[0] / "last.ckpt").unlink()
    assert "there is no other one" in message(folders[1] / "last.ckpt")


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
    for read, given in ((main, ["fit", *ARGUMENTS, f"--ckpt_path={path}"]), (CheckpointFiles().load_checkpoint, path)):
        assert ("tensors and plain containers" if how == "torch" else "damaged") in refused(read, given)
    assert not Path("executed").exists()
