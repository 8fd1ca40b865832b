"""A test in a project that can't be written has its results, and tells that no certificate will know of it."""

from types import SimpleNamespace

import pytest

from lightning_cgrpo.callbacks.tested_prompts import TestedPrompts
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.run.manifest import KEY, Manifest
from lightning_cgrpo.run.register import Register


def test_a_test_of_an_unwritable_project_goes_on(folder, monkeypatch):
    data = GridworldDataModule(prompts_per_update=4, train_prompts=12, val_prompts=4)
    trainer = SimpleNamespace(datamodule=data, ckpt_path=str(folder / "last.ckpt"))
    state = Manifest({}, lineage=("a run",)).state()
    callback = TestedPrompts()
    callback.on_load_checkpoint(trainer, None, {KEY: state, "global_step": 3})
    callback.on_test_end(trainer, None)
    assert [(entry["event"], entry["update"]) for entry in Register(folder).entries()] == [("test", 3)]

    def refused(*_):
        raise PermissionError("not yours")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    with pytest.warns(UserWarning, match="No certificate will tell of this test. Expected to record"):
        callback.on_test_end(trainer, None)
