"""What an export tells of the runs that made it: prompts and looks, in other projects, too."""

import json
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lightning_cgrpo.callbacks.tested_prompts import TestedPrompts
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.run.fingerprints import file_fingerprints
from lightning_cgrpo.run.lineage import FILE, read_lineage, write_lineage
from lightning_cgrpo.run.looks import Ledger, company_of, used_prompts
from lightning_cgrpo.run.manifest import KEY, Manifest, differences
from lightning_cgrpo.run.register import Register, shown_by

OURS, OTHERS = shown_by([1.0, 2.0]), shown_by([3.0])


def began(register, name, shown, number=1):
    about = {"id": f"{name}{number}", "lineage": [name], "look": number, "shown": shown, "update": 1}
    register.append({"event": "began", **about})


@pytest.fixture
def exported(tmp_path):
    """An export of the run ``ancestor``, at which one look ended and one began, in the project ``first``."""
    project, model = tmp_path / "first", tmp_path / "model"
    for folder in (project, model):
        folder.mkdir()
    register = Register(project)
    began(register, "ancestor", OURS)
    register.append({"event": "ended", "id": "ancestor1", "decision": "certified"})
    began(register, "stranger", OTHERS)
    began(register, "ancestor", shown_by([7.0]), number=2)
    write_lineage(model, Manifest({}, lineage=("ancestor",), project=str(project)), "weights")
    return model


def test_looks_at_an_ancestor_count_in_another_project(exported, tmp_path):
    (tmp_path / "second").mkdir()
    register = Register(tmp_path / "second")
    ancestry = read_lineage(exported, "weights")
    for _ in range(2):  # two runs start from the model
        register.take(ancestry.looks)
    child = Manifest({}).starting(ancestry.lineage, ancestry.used, ancestry.known)
    looks = Ledger(register, tmp_path, child, {}).looks()
    assert [look.get("decision") for look in looks] == ["certified", None]
    assert used_prompts(looks, {}).looked == {1.0, 2.0, 7.0}


def test_looks_at_the_same_policy_count_whichever_run_made_it(tmp_path):
    """As a run of one update at a learning rate of 0, made twice."""
    register = Register(tmp_path)
    about = {"id": "first1", "lineage": ["first"], "look": 1, "shown": OURS, "update": 1, "policy": "same"}
    register.append({"event": "began", **about})
    runs = [Manifest({}, lineage=(name,)) for name in ("first", "second")]
    counts = [len(Ledger(register, tmp_path, run, {"policy": of}).looks()) for run in runs for of in ("same", "other")]
    assert counts == [1, 1, 1, 0]


def test_an_export_of_a_moved_project_takes_its_looks_along(tmp_path):
    """The register is searched from the checkpoint, because the project is no longer where its runs say."""
    moved, model = tmp_path / "moved", tmp_path / "elsewhere" / "model"
    checkpoints = moved / "runs" / "mine" / "version_0" / "checkpoints"
    for folder in (checkpoints, model):
        folder.mkdir(parents=True)
    began(Register(moved), "ancestor", OURS)
    manifest = Manifest({}, lineage=("ancestor",), project=str(tmp_path / "before"))
    write_lineage(model, manifest, "weights", place=checkpoints)
    assert len(read_lineage(model, "weights").looks) == 1
    assert [entry["event"] for entry in Register(moved).entries()] == ["began", "export"]


@pytest.fixture
def unwritable(monkeypatch):
    """Makes the register of every project unwritable."""

    def refused(*_):
        raise PermissionError("not yours")

    return lambda: monkeypatch.setattr("filelock.FileLock.acquire", refused)


def test_a_test_of_an_unwritable_project_has_results_and_tells_that_no_certificate_will_know(folder, unwritable):
    data = GridworldDataModule(prompts_per_update=4, train_prompts=12, val_prompts=4)
    trainer = SimpleNamespace(datamodule=data, ckpt_path=str(folder / "last.ckpt"))
    callback = TestedPrompts()
    callback.on_load_checkpoint(trainer, None, {KEY: Manifest({}, lineage=("a run",)).state(), "global_step": 3})
    callback.on_test_end(trainer, None)
    assert [(entry["event"], entry["update"]) for entry in Register(folder).entries()] == [("test", 3)]
    unwritable()
    with pytest.warns(UserWarning, match="No certificate will tell of this test. Expected to record"):
        callback.on_test_end(trainer, None)


def test_an_export_of_an_unwritable_project_has_its_record(exported, tmp_path, unwritable):
    unwritable()
    (exported / FILE).unlink()
    with pytest.warns(UserWarning, match=r"count only with its lineage.json. Expected to record .*not yours"):
        write_lineage(exported, Manifest({}, lineage=("ancestor",), project=str(tmp_path / "first")), "weights")
    assert len(read_lineage(exported, "weights").looks) == 3


def test_the_record_of_an_export_is_no_file_that_answers_depend_on(exported):
    (exported / "config.json").write_text("{}")
    assert [*file_fingerprints(exported)] == ["config.json"]


def test_fingerprints_of_an_earlier_version_are_told():
    def manifest(number):
        prompts = {"train": torch.tensor([[-5, 3], [9, number]])}
        return Manifest({}, prompts=prompts)

    assert manifest(2**53 - 1).used_known and not manifest(2**53).used_known and not manifest(-1).used_known
    assert not manifest(4).continuing(manifest(-1)).used_known


def test_what_an_earlier_version_did_not_write_is_no_difference():
    parts = {"files": {"model.reward": "a"}, "variables": {"SIGN": "1"}, "versions": {"torch": "2"}}
    now = Manifest({}, machine={"precision": "32-true", "device": "cpu"}, **parts)
    state = now.state()
    for name in parts:
        del state[name]
    state["machine"] = {"precision": "bf16-mixed"}
    before = Manifest.of({"manifest": state})
    assert differences(before, now) == ["precision bf16-mixed -> 32-true"]
    assert len(differences(Manifest({}), now)) == 3
    assert json.dumps(before.readable()) and Path(FILE).name == "lineage.json"


def test_a_runs_name_takes_settings_of_any_type():
    """YAML makes dates, which are no JSON."""
    first, second = (Manifest({"data.since": date(2026, 11, day)}).name for day in (1, 2))
    assert first == Manifest({"data.since": date(2026, 11, 1)}).name != second


def test_policies_measured_at_a_looks_prompts_are_counted():
    """By looks or tests; entries without prompts, such as ends of looks, count nothing."""
    look = {"event": "began", "lineage": ["mine"], "update": 3, "shown": shown_by([1.0, 2.0])}
    tests = [{"event": "test", "lineage": [name], "update": 1, "shown": shown_by([2.0])} for name in ("a", "b")]
    elsewhere = {"event": "test", "lineage": ["c"], "update": 1, "shown": shown_by([9.0])}
    entries = [look, *tests, tests[0], elsewhere, {"event": "ended"}]
    assert company_of(entries, look) == {"policies": 4, "here": 3, "tested": 2}
