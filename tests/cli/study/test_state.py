"""How a study knows its runs: by the identity that a run writes, here and in saved results."""

import json
from pathlib import Path

import pytest

from lightning_cgrpo.cli.study.command import report_runs
from lightning_cgrpo.cli.study.state import (
    Results,
    check_distinct,
    describe_state,
    digest_now,
    identity,
    last_checkpoint,
    weights_fingerprint,
    write_notes,
)
from lightning_cgrpo.cli.study.study import Run, configuration, read_study
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.policies.model_files import origin
from lightning_cgrpo.run.fingerprints import source_fingerprints
from lightning_cgrpo.run.identity import identity_of
from lightning_cgrpo.run.manifest import prompts_digest
from lightning_cgrpo.run.reads import reads_of
from lightning_cgrpo.run.runs import read_record, save_run
from lightning_cgrpo.settings.settings import differing, settings_of
from tests.cli.report.conftest import made, summary

ROOT = Path(__file__).parents[3]
REWARDS = "def brief(completions):\n    return [0.0 for _ in completions]\n"
PROMPTS = '{"prompt": "one"}\n{"prompt": "two"}\n'
OPEN = ("claims_gridworld_weights",)
"""Studies that wait for a machine with hours to spare, as docs/claims.md says."""
SHIPPED = {
    task: " ".join(file.stem for file in ROOT.glob(f"configs/studies/*{task}*.yaml") if file.stem not in OPEN)
    for task in ("gridworld", "gsm8k", "navsim")
}
COMMITTED = {
    **SHIPPED,
    "gsm8k": f"{SHIPPED['gsm8k']} constraints constraints/given_study",
    "calculator": "calculator",
    **{f"environments/{world}": world for world in ("cartpole", "highway", "hopper_velocity", "pendulum")},
    "environments/minigrid_lava": "minigrid_lava estimators_minigrid_lava",
}


PLACES = ("configs/studies/{}.yaml", "examples/{}/study.yaml", "examples/{}.yaml")
"""Where a study of a name may lie."""
LONG = dict.fromkeys(SHIPPED, pytest.mark.slow)


@pytest.fixture(autouse=True)
def forget():
    yield
    for cached in (identity, configuration, weights_fingerprint, digest_now):
        cached.cache_clear()


def make(*overrides, seed=0, updates=10, variant="a"):
    given = ("-c", "configs/gridworld.yaml", f"--trainer.max_steps={updates}", *overrides)
    return Run(variant, seed, given, "runs/mine")


def begin(run, updates, status="running", version=0, **more):
    """What training leaves in the folder of a run."""
    folder = run.folder / f"version_{version}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    about = summary(config=configuration(run), updates=updates, asked=10)
    (folder / SUMMARY).write_text(json.dumps({**about, "status": status, **more}))


def unlike(run, there):
    """The settings in which the most similar saved run differs: of it, and of the configuration."""
    now = json.loads(identity(run))
    methods = [saved.method for saved in there.saved.values()]
    found = [list(differing(settings_of(method), settings_of(now["method"]))) for method in methods]
    return min(found, key=len) or "seed, length, weights, or settings that the configuration has no more"


@pytest.mark.parametrize("folder", [pytest.param(name, marks=LONG.get(name, ())) for name in COMMITTED])
def test_the_committed_results_are_finished_runs(folder):
    """Each run of a shipped study is known by its settings and has its numbers, and there are no other runs."""
    results, known = ROOT / "docs/results" / folder, set()
    for name in COMMITTED[folder].split():
        files = [ROOT / place.format(name) for place in PLACES]
        runs = read_study(str(next(file for file in files if file.is_file()))).runs
        there = Results(results, ROOT / "none")
        assert {run.name: unlike(run, there) for run in runs if not there.finished(run)} == {}
        check_distinct(runs)
        known |= {identity(run) for run in runs}
    assert known == set(there.saved) and all(record.answers for record in there.saved.values())
    assert all((path.parents[1] / "report.md").is_file() for path in results.glob("**/runs/*.json"))


def test_other_weights_behind_the_same_name_make_another_run(folder, monkeypatch):
    run = Run("a", 0, ("-c", "configs/gsm8k.yaml", "--model.policy.model=mine"), "runs/mine")
    (folder / "mine").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "mine" / name).write_text(name)
    first = identity(run)
    assert origin("mine").fingerprint in first
    (folder / "mine/model.safetensors").write_text("others")
    identity.cache_clear(), weights_fingerprint.cache_clear()
    assert identity(run) != first
    (folder / "mine/config.json").unlink()
    weights_fingerprint.cache_clear()
    monkeypatch.setattr("lightning_cgrpo.policies.model_files.hub_answers", lambda: True)
    for model in ("mine", "nobody/nothing"):
        with pytest.raises(UserError, match="Expected a model to start from"):
            weights_fingerprint(model)


def test_a_run_goes_from_open_to_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, results = make(), Results(tmp_path / "results", tmp_path / "report", [("test",)])
    assert describe_state(run) == "open"
    run.folder.mkdir(parents=True)
    write_notes(run, error="no memory")
    assert describe_state(run) == "failed: no memory"
    begin(run, 4)
    assert describe_state(run) == "failed at 4 of 10: no memory"
    write_notes(run)
    assert describe_state(run) == "interrupted at 4 of 10"
    with pytest.raises(UserError, match=r"'runs/mine/a,seed=0' to hold the run of the same configuration"):
        describe_state(make(updates=20))
    begin(run, 10, "finished", version=1)
    assert describe_state(run) == "trained, but not tested" and not results.finished(run)
    write_notes(run, after=["export", "test"])
    assert results.finished(run) and not results.finished(make(seed=1))
    with pytest.raises(UserError, match="Expected a log in 'runs/mine/a,seed=0/version_1'"):
        results.read(run)


@pytest.mark.parametrize(
    ("change", "finished"),
    [
        ({}, True),
        ({"rewards_of_study.py": "# a comment\n" + REWARDS}, True),
        ({"rewards_of_study.py": REWARDS.replace("0.0", "1.0")}, False),
        ({"prompts.jsonl": PROMPTS.replace("two", "three")}, False),
        ({"rules/words.txt": "other rules"}, False),
    ],
)
def test_changed_prompts_or_code_are_trained_again(folder, monkeypatch, change, finished):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "rules").mkdir()
    files = {"rewards_of_study.py": REWARDS, "prompts.jsonl": PROMPTS, "rules/words.txt": "rules"}
    for name, text in files.items():
        (folder / name).write_text(text)
    own = ("--data=PromptDataModule", "--data.path=prompts.jsonl", "--model.task=FunctionTask")
    own += ("--model.task.signals={brief: rewards_of_study.brief}", "--model.task.reads=[rules]")
    run = Run("a", 0, ("-c", "configs/gsm8k.yaml", *own), "runs/a")
    prompts = source_fingerprints(PromptDataModule("prompts.jsonl").source("train"))
    reads = reads_of(["rewards_of_study.brief"])
    reads.add(["rules"])
    inputs = {"code": reads.code, "prompts": {"train": prompts_digest(prompts)}, "files": reads.files}
    about = {"inputs": inputs, "weights": json.loads(identity(run))["weights"]}
    begin(run, 10, "finished", **about)
    write_notes(run, after=["export", "test"])
    save_run(made(config=configuration(run), **about), folder / "saved/runs/a_seed0.json")
    checkpoint = run.folder / "version_0/checkpoints/last.ckpt"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    for name, text in change.items():
        (folder / name).write_text(text)
    assert last_checkpoint(run) == (checkpoint if finished else None), "a run of other inputs goes not on"
    assert Results(folder / "saved", folder / "report").finished(run) == finished
    assert ("trained with other inputs" in describe_state(run)) != finished


def test_results_of_other_machines_count_whatever_the_variant_was_called(tmp_path):
    run = make()
    for name, reward in (("early", 0.25), ("late", 0.5)):
        save_run(
            made(final={"reward/mean": reward}, config=configuration(run)), tmp_path / name / "runs/other_seed0.json"
        )
    there = Results(tmp_path, tmp_path / "late")
    assert there.finished(run) and there.finished(make(variant="renamed")) and not there.finished(make(updates=20))
    # The report's own runs come first: another study may have trained the variant with an older default.
    assert there.read(run).final == {"reward/mean": 0.5} and Results(tmp_path, tmp_path).read(run).final != {}
    assert identity_of(configuration(run))["method"] == read_record(tmp_path / "late/runs/other_seed0.json").method
    # Another variant may now take the file of `other`.
    report_runs([make(variant="renamed")], [make(updates=20)], there, tmp_path / "late")
    assert "(`study --list` says why): " in (tmp_path / "late/report.md").read_text()
    assert len({(tmp_path / "late/runs" / f"{name}_seed0.json").read_bytes() for name in ("other", "renamed")}) == 1
