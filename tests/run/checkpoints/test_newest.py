"""Which checkpoint of a run is the newest."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_cgrpo.callbacks.checkpoints import Checkpoints
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.checkpoints.files import newest
from lightning_cgrpo.run.checkpoints.plugin import CheckpointFiles


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


@pytest.mark.parametrize(
    ("dirpath", "loggers", "place"),
    [
        (None, [SimpleNamespace(save_dir="runs/run", name="logged")], "logged/version_0/checkpoints"),
        (None, [], "checkpoints"),
        ("runs/run/kept", [SimpleNamespace(save_dir="runs/run", name="logged")], "kept"),
        ("runs/run/kept", [], "kept"),
    ],
)
def test_last_is_looked_for_where_the_run_writes(folder, dirpath, loggers, place):
    paths = {where: saved(f"{where}/last.ckpt", 2) for where in ("logged/version_0/checkpoints", "checkpoints", "kept")}
    trainer = SimpleNamespace(loggers=loggers, default_root_dir="runs/run", checkpoint_callbacks=[])
    [found] = Checkpoints(dirpath)._find_last_checkpoints(trainer)
    assert Path(found).resolve() == paths[place].resolve()


def test_a_damaged_newest_is_not_passed_over(folder):
    first = saved("version_0/checkpoints/last.ckpt", 2)
    last = saved("version_1/checkpoints/last.ckpt", 6)
    content = last.read_bytes()
    last.write_bytes(content[:100])
    assert newest_of_run() == last
    last.write_bytes(content)
    first.write_bytes(b"PK")
    assert newest_of_run() == last
