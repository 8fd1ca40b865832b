"""Finding runs and putting them together."""

import shutil
from pathlib import Path

import pytest
import yaml

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.reporting import saved_runs as saved
from lightning_cgrpo.reporting.collect import collect
from lightning_cgrpo.reporting.sweeps import find_sweeps
from tests.reporting.conftest import fixed

REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}
LAST = 1 / 8


def collected(*paths):
    return collect([path if isinstance(path, tuple) else (None, path) for path in paths], LAST)


def notes(*paths):
    """Notes on runs, and on the sources."""
    found = collected(*paths)
    return [*(note for task in found.tasks for note in task.notes), *found.notes]


def test_groups_by_configuration_and_not_by_name(make_run, tmp_path):
    make_run("one/version_0", seed=0)
    make_run("other/version_0", seed=1)
    make_run("one/version_1", REWARDS, seed=0)
    found = collected(tmp_path)
    assert {m.label: [run.seed for run in m.runs] for m in found.methods} == {
        "ScalarizedAdvantages": [0, 1],
        "ScalarizedRewards": [0],
    }


def test_the_values_of_a_run(make_run, tmp_path):
    make_run("x/version_0", seed=7, evaluations={"test/reward/mean": 0.5})
    [method] = collected(tmp_path).methods
    [run] = method.runs
    assert (run.seed, run.updates, run.max_updates, run.finished) == (7, 100, 100, True)
    # Updates 88 … 99 are in the last eighth.
    assert run.final["reward/mean"] == pytest.approx(sum(range(88, 100)) / 12 / 100)
    assert run.evaluations == {"test/reward/mean": 0.5}
    lava, reward = run.distributions["lava"], run.distributions["reward"]
    assert lava[0] == pytest.approx(sum(lava) / 2, rel=1e-3) and reward[12] == pytest.approx(sum(reward), rel=1e-3)


def test_what_is_found_twice_is_read_once(make_run, tmp_path, monkeypatch):
    make_run("x/version_0")
    monkeypatch.chdir(tmp_path)
    assert notes(tmp_path, Path("x"), tmp_path / "x" / "version_0") == []


def test_unfinished_runs_of_a_method_are_one_note(make_run, tmp_path):
    make_run("x/version_0", updates=40)
    make_run("x/version_1", seed=1, updates=60)
    make_run("x/version_2", seed=2)
    assert "Unfinished: ScalarizedAdvantages: 40 to 60 of 100 updates (seeds 0, 1)." in notes(tmp_path)


def test_bins_are_those_of_a_finished_run(make_run, tmp_path):
    """Or times and figures would change with every report of a running one."""
    for n, (updates, width) in enumerate([(3, 1), (30, 5), (60, 10), (90, 10)]):
        folder = make_run(f"{n}/version_0", {"trainer.max_steps": 1000}, updates=updates)
        [run] = collected(folder).methods[0].runs
        assert run.width == width and len(run.series["reward/mean"]) >= 3


def test_a_run_whose_beginning_is_not_at_hand_is_said(make_run, tmp_path):
    make_run("x/version_1", start=50)
    [note] = notes(tmp_path)
    assert note == (
        "ScalarizedAdvantages, seed 0: begins at update 50; its earlier part is not among these, or of another method."
    )


def test_faults_are_said_per_method(make_run, tmp_path):
    faulty = {
        "reward/mean": lambda u: 1,
        "faults/goal": lambda u: 2 if u < 7 else 0,
        "faults/skipped_steps": lambda u: 2 if u == 5 else 0,
    }
    for seed in (0, 1):
        make_run(f"x/version_{seed}", seed=seed, scalars=faulty)
    make_run("x/version_2", REWARDS)
    [note] = [note for note in notes(tmp_path) if note.startswith("Faults")]
    assert note == (
        "Faults: ScalarizedAdvantages: goal was not finite in 14 logged updates, 4 optimizer steps were skipped in "
        "logged updates."
    )


def test_a_source_that_gives_nothing_is_said(make_run, tmp_path):
    run = make_run("x/version_0")
    nothing, other = tmp_path / "nothing", tmp_path / "other.json"
    nothing.mkdir()
    other.write_text("{}")
    assert collected(run, nothing, run, other).notes == [
        f"Found no log and no saved run in {nothing}.",
        f"Found no log and no saved run in {other}.",
    ]


def test_saved_distributions_stay_those_of_their_share(make_run, tmp_path):
    folder = make_run("x/version_0")
    saved.write_all([("a", collected(folder).methods[0].runs[0])], LAST, tmp_path / "saved")
    found = collect([(None, tmp_path / "saved")], 0.5)
    assert found.tasks[0].notes == [
        "Distributions are over the part of training that they were saved for: ScalarizedAdvantages."
    ]
    [run] = found.methods[0].runs
    assert run.final["reward/mean"] == pytest.approx(0.745)
    # And it is still known when they are saved again.
    saved.write_all([("a", run)], 0.5, tmp_path / "again")
    assert saved.read(next((tmp_path / "again").iterdir()), 0.5).pooled == LAST


def test_an_empty_log_is_said_and_left_out(make_run, tmp_path):
    make_run("x/version_0")
    empty = make_run("x/version_1", seed=1, scalars={})
    found = collected(tmp_path)
    assert len(found.methods[0].runs) == 1
    assert found.notes == [f"Skipped {empty}: its log holds no updates."]


def test_nothing_to_read(make_run, tmp_path):
    with pytest.raises(UserError, match="There is no"):
        collected(tmp_path / "missing")
    with pytest.raises(UserError, match="Found no run"):
        collected(tmp_path)
    make_run("x", scalars={})
    with pytest.raises(UserError, match="no updates"):
        collected(tmp_path)


def test_without_a_configuration_the_folder_is_the_method(make_run, tmp_path):
    make_run("x/version_0", config=False)
    make_run("x/version_1", config=False)
    make_run("y/version_0")
    found = collected(tmp_path)
    assert [method.label for method in found.methods] == ["x/version_0", "x/version_1", "ScalarizedAdvantages"]
    assert found.methods[0].constraints["lava"].at_most == pytest.approx(0.1)
    assert sum("config.yaml" in note for note in found.notes) == 2


def test_a_broken_configuration_is_said(make_run, tmp_path):
    (make_run("x/version_0") / "config.yaml").write_text("a: [")
    found = collected(tmp_path)
    assert found.methods[0].label == "x/version_0" and "can't be read" in found.notes[0]


def test_a_test_is_logged_beside_its_training(make_run, tmp_path):
    folder = make_run("x/version_0")
    both = {"test/reward/mean": 0.5, "test_train/reward/mean": 0.6, "val/reward/mean": 0.4}
    make_run("x/version_0", scalars={}, evaluations=both)
    assert collected(tmp_path).methods[0].runs[0].evaluations == pytest.approx(both)
    # A later test without training prompts has none of an earlier one.
    make_run("x/version_0", scalars={}, evaluations={"test/reward/mean": 0.75})
    later = {"test/reward/mean": 0.75, "val/reward/mean": 0.4}
    assert collected(tmp_path).methods[0].runs[0].evaluations == pytest.approx(later)
    assert notes(folder) == []


def test_a_folder_with_an_evaluation_only_is_skipped(make_run, tmp_path):
    make_run("x/version_0")
    at = {"ckpt_path": f"{tmp_path}/x/version_0/checkpoints/last.ckpt"}
    only = make_run("x/version_1", at, scalars={}, evaluations={"test/reward/mean": 0.75})
    found = collected(tmp_path)
    assert found.methods[0].runs[0].evaluations == {}
    assert found.notes == [f"Skipped {only}: its log holds no updates, only an evaluation."]


def test_names_that_the_user_gives(make_run, tmp_path):
    make_run("old/version_0")
    make_run("new/version_0")
    make_run("new/version_1", REWARDS)
    found = collected(("before", tmp_path / "old"), ("now", tmp_path / "new"))
    assert [method.label for method in found.methods] == [
        "before",
        "now: ScalarizedAdvantages",
        "now: ScalarizedRewards",
    ]


def test_logs_win_over_saved_runs_unless_these_reach_further(make_run, tmp_path):
    folder = make_run("x/version_0", updates=100, evaluations={"test/reward/mean": 0.5})
    saved.write_all([("a", collected(folder).methods[0].runs[0])], LAST, tmp_path / "saved")
    shutil.rmtree(folder)
    again = make_run("y/version_0", updates=40, scalars={"reward/mean": lambda u: -1})
    [run] = collected(again, tmp_path / "saved").methods[0].runs
    assert run.updates == 100 and run.final["reward/mean"] > 0.9
    make_run("y/version_1", updates=100, scalars={"reward/mean": lambda u: -1})
    [run] = collected(tmp_path / "y", tmp_path / "saved").methods[0].runs
    # Of another start the test is not taken.
    assert run.final["reward/mean"] == -1 and run.evaluations == {}
    [note] = [n for n in notes(tmp_path / "y", tmp_path / "saved") if n.startswith("Several starts")]
    assert "seed 0 is y/version_1 (100 updates), not x/version_0 (100, other numbers), y/version_0 (40)." in note


def test_a_saved_run_and_its_log_are_one_run(make_run, tmp_path):
    folder = make_run("x/version_0", evaluations={"test/reward/mean": 0.5})
    saved.write_all([("a", collected(folder).methods[0].runs[0])], LAST, tmp_path / "saved")
    shutil.rmtree(folder)
    folder = make_run("x/version_0", evaluations={"val/reward/mean": 0.25})
    [run] = collected(folder, tmp_path / "saved").methods[0].runs
    assert run.evaluations == {"test/reward/mean": 0.5, "val/reward/mean": 0.25}
    assert notes(folder, tmp_path / "saved") == []
    # Resumed since, it is further than what was tested.
    make_run("x/version_1", {"ckpt_path": "x/version_0/checkpoints/last.ckpt"}, start=100, updates=120)
    [run] = collected(tmp_path / "x", tmp_path / "saved").methods[0].runs
    assert run.updates == 120 and run.evaluations == {} and notes(tmp_path / "x", tmp_path / "saved") == []


def test_a_sweep_is_found_by_its_weights(make_run, tmp_path):
    n = 0
    for estimator in ({}, REWARDS):
        for safe in (0, 0.1):
            for lava in (0.5, 0, 0.1):
                weights = {"callbacks.multipliers": fixed(reward=1.0, lava=lava, safe=safe)}
                make_run(f"x/version_{n}", {**estimator, **weights}, updates=2)
                n += 1
    make_run("y/version_0", updates=2)
    make_run("y/version_1", {"callbacks.multipliers": fixed(lava=1, safe=1)}, updates=2)
    [sweep] = find_sweeps(collected(tmp_path).methods)
    assert sweep.weight == "lava"
    assert list(sweep.rows) == ["λ of safe = 0", "λ of safe = 0.1"]
    for lines in sweep.rows.values():
        assert list(lines) == ["ScalarizedAdvantages", "ScalarizedRewards"]
        assert [[weight for weight, _ in found] for found in lines.values()] == [[0, 0.1, 0.5]] * 2
    # The user's names may tell the weights.
    named = [(f"run{number}", tmp_path / f"x/version_{number}") for number in range(n)]
    assert [list(lines) for lines in find_sweeps(collected(*named).methods)[0].rows.values()] == [list(lines)] * 2
    # Two values are no sweep.
    few = [m for m in collected(tmp_path).methods if "lava 0.5" not in m.label]
    assert find_sweeps(few) == []


def test_other_json_files_are_let_alone(make_run, tmp_path):
    folder = make_run("x/version_0")
    (folder / "other.json").write_text(yaml.safe_dump({"a": 1}))
    (folder / "broken.json").write_text('{"format": "lightning_cgrpo run 1"}')
    (folder / "cut.json").write_text('{"format": "lightning_cgrpo run 1", "upda')
    found = collected(tmp_path).notes
    assert ["broken.json" in found[0], "cut.json" in found[1], len(found)] == [True, True, 2]
