"""Finished runs are known by their configuration, starting weights and seed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.pretrained import origin
from lightning_cgrpo.studies import ledger as module
from lightning_cgrpo.studies.ledger import Ledger, begun, fingerprint, finish, note, state, weights
from lightning_cgrpo.studies.study import Run, configuration, read_study

ROOT = Path(__file__).parents[2]
COMMITTED = {
    "gridworld": {
        "gridworld": 30,
        "gridworld_sweep": 108,
        "gridworld_controllers": 24,
        "gridworld_choices": 36,
        "gridworld_critics": 10,
        "duals_gridworld": 42,
    },
    "gsm8k": {"gsm8k": 21, "gsm8k_critics": 6, "constraints": 30, "thresholds_gsm8k": 9, "duals_gsm8k": 60},
    "navsim": {"navsim": 21, "navsim_critics": 9, "navsim_schedules": 6, "navsim_scoring": 6, "duals_navsim": 42},
    "calculator": {"calculator": 9},
    "environments/cartpole": {"cartpole": 12},
    "environments/pendulum": {"pendulum": 15},
    "environments/minigrid_lava": {"minigrid_lava": 12},
}
"""By folder of results, the studies and their numbers of runs."""
SPENT = {"seconds": 2.0, "cpu_seconds": 1.0, "peak_mb": 400}


@pytest.fixture(autouse=True)
def forget():
    yield
    for cached in (fingerprint, weights, configuration):
        cached.cache_clear()


def make(*overrides, seed=0, updates=10, variant="a"):
    given = ("-c", "configs/gridworld.yaml", f"--trainer.max_steps={updates}", *overrides)
    return Run(variant, seed, given, "runs/mine")


def shipped(name):
    file = ROOT / "configs/studies" / f"{name}.yaml"
    return read_study(str(file if file.is_file() else ROOT / "examples" / name / "study.yaml"))


@pytest.mark.parametrize(
    "folder",
    [pytest.param(folder, marks=pytest.mark.slow if folder in ("gridworld", "gsm8k") else ()) for folder in COMMITTED],
)
def test_the_committed_results_are_finished_runs(folder):
    """Each run of a shipped study is known by its fingerprint and has its numbers, and there are no others."""
    ledger = Ledger(ROOT / "docs/results" / folder, ROOT / "none")
    assert ledger.records and set(ledger.records) == set(ledger.saved)
    assert all(record["answers"] for record in ledger.records.values())
    assert all((path.parents[1] / "report.md").is_file() for path in ledger.saved.values())
    known = set()
    for name, count in COMMITTED[folder].items():
        study = shipped(name)
        assert len(study.runs) == count
        assert [run.name for run in study.runs if not ledger.finished(run)] == []
        assert len({ledger.source(run) for run in study.runs}) == count
        ledger.check(study.runs)
        known |= {fingerprint(run) for run in study.runs}
    assert known == set(ledger.names)


def test_a_fingerprint_tells_learning_seed_and_length():
    same = make("--callbacks.layout=null", "--trainer.enable_checkpointing=false")
    assert fingerprint(same) == fingerprint(make()) == fingerprint(replace(make(), variant="b", logs="elsewhere"))
    others = [
        make(seed=1),
        make(updates=20),
        make("--model.group_size=4"),
        make("--data.test_prompts=7"),
        make("--callbacks.multipliers.controller=PID"),
        make("--trainer.precision=bf16-mixed"),
        make("--callbacks.own=lightning.pytorch.callbacks.EarlyStopping", "--callbacks.own.monitor=reward/mean"),
        make("--trainer.max_steps=-1", "--trainer.max_epochs=1"),
        make("--trainer.max_steps=-1", "--trainer.max_epochs=2"),
    ]
    assert len({fingerprint(run) for run in [make(), *others]}) == len(others) + 1


def test_other_weights_behind_the_same_name_make_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run("a", 0, ("-c", "configs/gsm8k.yaml", "--model.policy.model=mine"), "runs/mine")
    own = tmp_path / "mine"
    own.mkdir()
    for name in ("config.json", "model.safetensors"):
        (own / name).write_text(name)
    first = fingerprint(run)
    (own / "model.safetensors").write_text("others")
    fingerprint.cache_clear(), weights.cache_clear()
    assert fingerprint(run) != first
    (own / "config.json").unlink()
    fingerprint.cache_clear(), weights.cache_clear()
    with pytest.raises(UserError, match=r"got 'mine': the directory has no config.json"):
        fingerprint(run)


def test_starting_weights_are_known_by_the_fingerprint_of_the_policys_origin(tmp_path, monkeypatch):
    """Of adapters too. A model that must be downloaded first is an error."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text(name)
    assert weights(str(tmp_path)) == origin(str(tmp_path)).fingerprint
    monkeypatch.setattr("lightning_cgrpo.policies.pretrained.hub_answers", lambda: True)
    with pytest.raises(UserError, match="on this machine, but got 'nobody/nothing', try downloading it"):
        weights("nobody/nothing")


def test_a_run_goes_from_open_to_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, longer = make(), make(updates=20)
    assert state(run) == "open"
    note(run, {})
    (run.folder / "progress.txt").write_text("4 10\n")
    assert state(run) == "interrupted at 4 of 10"
    note(run, {"error": "no memory"})
    assert state(run) == "failed at 4: no memory"
    with pytest.raises(UserError, match=r"Expected 'runs/mine/a,seed=0' to hold the run of the same configuration"):
        begun(longer)
    ledger = Ledger(tmp_path / "results", tmp_path / "report")
    assert not ledger.finished(run)
    finish(run, SPENT)
    assert ledger.finished(run) and not ledger.finished(longer) and ledger.source(run) == run.folder
    assert {"cpu", "torch", "python"} < set(ledger.record(run)) and ledger.record(run)["cpu_seconds"] == 1.0


def test_results_of_other_machines_count_whatever_the_variant_was_called(tmp_path, monkeypatch):
    """But not without their numbers, nor for another configuration."""
    monkeypatch.chdir(tmp_path)
    run = make()
    note(run, {})
    finish(run, SPENT)
    Ledger(tmp_path / "results", tmp_path / "results/report").write([run])
    for file in run.folder.glob("*.json"):
        file.unlink()
    ledger = Ledger(tmp_path / "results", tmp_path / "results/report")
    assert not ledger.finished(run), "a run whose numbers are nowhere is trained again"
    monkeypatch.setattr(module, "saved", lambda folders: {run.name: tmp_path / "results/other/runs/a.json"})
    ledger = Ledger(tmp_path / "results", tmp_path / "results/report")
    renamed, longer = make(variant="renamed"), make(updates=20)
    assert ledger.finished(run) and ledger.finished(renamed) and not ledger.finished(longer)
    assert ledger.record(renamed)["peak_mb"] == 400
    ledger.check([run])
    with pytest.raises(UserError, match="another study has it in"):
        ledger.check([longer])
    assert json.loads((tmp_path / "results/ledger.json").read_text())[run.name]["seconds"] == 2.0


def test_a_report_keeps_its_own_runs(tmp_path, monkeypatch):
    """Where another study's report holds the same variant, perhaps trained with an older default."""
    monkeypatch.chdir(tmp_path)
    run = make()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/ledger.json").write_text(json.dumps({run.name: {"fingerprint": fingerprint(run)}}))
    monkeypatch.setattr(module, "saved", lambda folder: {run.name: folder / "runs/a.json"})
    report = tmp_path / "results/early"
    assert Ledger(tmp_path / "results", report).source(run) == report / "runs/a.json"


def test_two_variants_of_the_same_learning_are_refused(tmp_path):
    same = [make(variant="a"), make("--callbacks.layout=null", variant="b")]
    with pytest.raises(UserError, match="Expected variants to differ in their learning, but 'a' and 'b' do not"):
        Ledger(tmp_path, tmp_path).check(same)
