"""Checkpoints that are directories: refused where a part is missing, and no code in them is run."""

import io
import os
import pickle
import random
import shutil
import struct
from pathlib import Path, PosixPath
from pickle import UnpicklingError
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import Checkpoints
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.damage import check_checkpoint, find_damage
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles
from lightning_cgrpo.run.checkpoints.sharded import _Descriptions
from tests.refusals import refused
from tests.run.checkpoints.full_disk_worker import little_room
from tests.run.checkpoints.test_files import Code

WORKER = Path(__file__).with_name("full_disk_worker.py")


def sharded(path, **values):
    """A checkpoint as fsdp2 writes them."""
    settings = [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["weight"], **values}]
    state = {"state_dict": {"weight": torch.arange(3000.0)}, "optimizer_0": {"param_groups": settings}}
    save(state, checkpoint_id=path, no_dist=True)
    torch.save({"global_step": 3}, path / "meta.pt")
    return path


def test_a_sharded_checkpoint_that_is_not_whole_is_refused(tmp_path):
    whole = sharded(tmp_path / "whole.ckpt")
    assert find_damage(whole) is None
    (part,) = (file.name for file in whole.glob("*.distcp"))
    for name in (part, ".metadata", "meta.pt"):
        for length in (None, 0, (whole / name).stat().st_size - 1):
            broken = shutil.copytree(whole, tmp_path / "broken.ckpt")
            if length is None:
                (broken / name).unlink()
            else:
                os.truncate(broken / name, length)
            assert find_damage(broken), (name, length)
            check_checkpoint.cache_clear()
            with pytest.raises(UserError, match=r"whole\.ckpt, the newest other one that is whole"):
                check_checkpoint(str(broken))
            shutil.rmtree(broken)


def test_every_changed_weight_and_setting_is_noticed(tmp_path):
    """torch loads a changed weight as it is."""
    path = sharded(tmp_path / "last.ckpt")
    (file,) = path.glob("*.distcp")
    raw = file.read_bytes()
    draw = random.Random(0)
    for name, value, places in (
        ("state_dict.weight", torch.arange(3000.0).numpy().tobytes(), 20),
        ("optimizer_0.param_groups", struct.pack(">d", 0.1), 3),  # as pickle writes it
    ):
        start = raw.index(value)
        for place in draw.sample(range(start, start + len(value)), places):
            content = bytearray(raw)
            content[place] ^= 1 << draw.randrange(8)
            file.write_bytes(content)
            assert find_damage(path).startswith(f"the checksum of {name}")
            state = {"weight": torch.zeros(3000)}
            load({"state_dict": state}, checkpoint_id=path, no_dist=True)
            assert torch.equal(state["weight"], torch.arange(3000.0)) == (name != "state_dict.weight")
    file.write_bytes(raw)
    assert find_damage(path) is None


class Room:
    """A trainer that has little of it, but for a checkpoint's weights or for the file that is written last."""

    loggers, is_global_zero, global_step = (), True, 3
    strategy = SimpleNamespace(barrier=lambda: None)

    def __init__(self, large):
        self.large = large

    def save_checkpoint(self, path, weights_only):
        weights, rest = (torch.zeros(3000 if self.large == name else 1) for name in ("weights", "rest"))
        with little_room(8000):
            save({"state_dict": {"weight": weights}}, checkpoint_id=path, no_dist=True)
            torch.save({"rest": rest}, path / "meta.pt")


@pytest.mark.parametrize("large", ["weights", "rest"])
def test_a_full_disk_costs_nothing_but_what_is_being_written(tmp_path, large):
    last = tmp_path / "last.ckpt"
    callback = Checkpoints(tmp_path)
    callback._save_checkpoint(Room(None), str(last))
    message = r"^Expected to write the checkpoint '.*/last\.ckpt', but got: .*, try to free space on the disk"
    with pytest.raises(UserError, match=message):
        callback._save_checkpoint(Room(large), str(last))
    assert list(tmp_path.iterdir()) == [last] and find_damage(last) is None


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_full_disk_ends_all_processes(tmp_path, launch, victim):
    """Also where only one of them meets it."""
    launch(2, WORKER, tmp_path, victim)
    for rank in (0, 1):
        assert "error: Expected to write the checkpoint" in (tmp_path / f"output_{rank}.txt").read_text()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def opcodes(*parts):
    """A pickle of opcodes (bytes) and short texts."""
    return b"\x80\x04" + b"".join(
        part if isinstance(part, bytes) else b"\x8c" + bytes([len(part)]) + part.encode() for part in parts
    )


METADATA = "torch.distributed.checkpoint.metadata"
DESCRIPTIONS = {
    "a foreign class": (pickle.dumps(Code()), "holds posix.mkdir"),
    "a module's module": (opcodes(METADATA, "os.system", b"\x93", "mkdir executed", b"\x85R."), "holds .*os.system"),
    "no description": (pickle.dumps({}), "holds a dict"),
}


@pytest.mark.parametrize("kind", [*DESCRIPTIONS, "another description", "a setting", "a file elsewhere"])
def test_code_in_a_sharded_checkpoint_is_not_run(folder, kind):
    """Which torch would run in going on with it: its description and the optimizer's settings are pickles."""
    path = sharded(folder / "evil.ckpt", **({"lr": Code()} if kind == "a setting" else {}))
    description, message = DESCRIPTIONS.get(kind, (None, "beside|more than tensors and plain containers"))
    if description:
        (path / ".metadata").write_bytes(description)
    elif kind == "another description":
        (path / "__0.metadata").write_bytes(pickle.dumps(Code()))
    elif kind == "a file elsewhere":
        content = (path / ".metadata").read_bytes()
        (path / ".metadata").write_bytes(content.replace(b"__0_0.distcp", b"../00.distcp"))
        shutil.move(path / "__0_0.distcp", folder / "00.distcp")
    with pytest.raises(UserError, match=f"damaged .*({message})"):
        main(["fit", "-c", "configs/gridworld.yaml", f"--ckpt_path={path}"])
    assert not Path("executed").exists()


class Attribute:
    def __init__(self, of, name):
        self.found = of, name

    def __reduce__(self):
        return getattr, self.found


def test_members_of_enumerations_are_read_as_python_3_11_2_writes_them():
    """By `getattr`, which could give anything else, too."""

    def read(of, name):
        return _Descriptions(io.BytesIO(pickle.dumps(Attribute(of, name)))).load()

    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    assert read(_MEM_FORMAT_ENCODING, member.name) is member
    for of, name in (
        *((_MEM_FORMAT_ENCODING, other) for other in ("mro", "__class__", "__init_subclass__", 1)),
        *((Metadata, "__init__"), (PosixPath, "unlink"), (PosixPath("."), "rmdir"), (member, "name")),
    ):
        with pytest.raises(UnpicklingError, match="holds"):
            read(of, name)


def test_a_sharded_checkpoint_is_read_by_fsdp2_alone(tmp_path):
    message = refused(CheckpointFiles().load_checkpoint, sharded(tmp_path / "last.ckpt"))
    assert "--trainer.strategy=fsdp2, " in message and " export" in message
