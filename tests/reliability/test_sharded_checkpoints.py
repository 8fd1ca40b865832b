"""Checkpoints that are directories: refused where a part is missing, and no code in them is run."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.checkpoint_files import CheckpointFiles, check_checkpoint, damage
from lightning_cgrpo.errors import UserError


class Code:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def sharded(path, **values):
    """A checkpoint as fsdp2 writes them."""
    settings = [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["weight"], **values}]
    state = {"state_dict": {"weight": torch.arange(3000.0)}, "optimizer_0": {"param_groups": settings}}
    save(state, checkpoint_id=path, no_dist=True)
    torch.save({"global_step": 3}, path / "meta.pt")
    return path


def test_a_sharded_checkpoint_that_is_not_whole_is_refused(tmp_path):
    whole = sharded(tmp_path / "whole.ckpt")
    assert damage(whole) is None
    (part,) = (file.name for file in whole.glob("*.distcp"))
    for name in (part, ".metadata", "meta.pt"):
        for length in (None, 0, (whole / name).stat().st_size - 1):
            broken = shutil.copytree(whole, tmp_path / "broken.ckpt")
            if length is None:
                (broken / name).unlink()
            else:
                os.truncate(broken / name, length)
            assert damage(broken), (name, length)
            check_checkpoint.cache_clear()
            with pytest.raises(UserError, match=r"whole\.ckpt, the newest other one that is whole"):
                check_checkpoint(str(broken))
            shutil.rmtree(broken)


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
    # So that torch couldn't read it, and would turn to another file.
    "a changed class": (
        opcodes(METADATA, "StorageMeta", b"\x93N}", "__init__", METADATA, "Metadata", b"\x93s\x86b."),
        "changes StorageMeta.__init__",
    ),
}


@pytest.mark.parametrize("kind", [*DESCRIPTIONS, "another description", "a setting", "a file elsewhere"])
def test_code_in_a_sharded_checkpoint_is_not_run(tmp_path, monkeypatch, kind):
    """Which torch would run in going on with it: its description and the optimizer's settings are pickles."""
    monkeypatch.chdir(tmp_path)
    path = sharded(tmp_path / "evil.ckpt", **({"lr": Code()} if kind == "a setting" else {}))
    description, message = DESCRIPTIONS.get(kind, (None, "beside|more than tensors and plain containers"))
    if description:
        (path / ".metadata").write_bytes(description)
    elif kind == "another description":
        (path / "__0.metadata").write_bytes(pickle.dumps(Code()))
    elif kind == "a file elsewhere":
        content = (path / ".metadata").read_bytes()
        (path / ".metadata").write_bytes(content.replace(b"__0_0.distcp", b"../00.distcp"))
        shutil.move(path / "__0_0.distcp", tmp_path / "00.distcp")
    with pytest.raises(UserError, match=f"damaged .*({message})"):
        main(["fit", "-c", "configs/gridworld.yaml", f"--ckpt_path={path}"])
    assert not Path("executed").exists()


def test_a_sharded_checkpoint_is_read_by_fsdp2_alone(tmp_path):
    with pytest.raises(UserError, match=r"--trainer\.strategy=fsdp2, .* export"):
        CheckpointFiles().load_checkpoint(sharded(tmp_path / "last.ckpt"))
