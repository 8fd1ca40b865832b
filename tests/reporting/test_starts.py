"""Resumed runs, and separate starts of one method and seed."""

import json
import shutil

import numpy as np
import pytest

from lightning_cgrpo.reporting.collect import collect

REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}


def collected(*paths):
    return collect([(None, path) for path in paths], 1 / 8)


def noisy(seed, offset=0.0):
    """Scalars that differ by seed."""
    values = np.random.default_rng(seed).random(200)
    return {"reward/mean": lambda u: values[u] + offset, "rate/lava": lambda u: values[-u - 1]}


def notes(found, start):
    lines = [*found.notes, *(note for task in found.tasks for note in task.notes)]
    return [line for line in lines if line.startswith(start)]


def resumed(where):
    return {"ckpt_path": f"{where}/checkpoints/last.ckpt"}


def test_a_resumed_run_is_one_run(make_run, tmp_path):
    make_run("x/version_0", updates=60, scalars={"reward/mean": lambda u: 0})
    make_run("x/version_1", resumed("x/version_0"), start=50, updates=80, scalars={"reward/mean": lambda u: 1})
    make_run("x/version_2", resumed(tmp_path / "x/version_1"), start=80, scalars={"reward/mean": lambda u: 2})
    found = collected(tmp_path)
    [run] = found.methods[0].runs
    assert run.updates == 100 and run.folders == ("x/version_0", "x/version_1", "x/version_2")
    assert run.series["reward/mean"].values.tolist() == [0] * 50 + [1] * 30 + [2] * 20
    assert notes(found, "Several") == notes(found, "Unfinished") == found.notes == []


def test_separate_starts_are_not_joined(make_run, tmp_path):
    """Eleven starts were taken for one resumed run: only a checkpoint makes a run go on."""
    for n in range(11):
        make_run(f"x/version_{n}", updates=100 if n in (3, 7) else 20 + n, scalars=noisy(0, 0.5 * (n == 3)))
    make_run("x/version_11", seed=1, scalars=noisy(1))
    found = collected(tmp_path)
    [method] = found.methods
    # The newest of those that went furthest; no seed counts twice.
    assert [run.folders for run in method.runs] == [("x/version_7",), ("x/version_11",)]
    assert method.runs[0].begins == 0 and method.runs[0].final["reward/mean"] < 1
    [note] = notes(found, "Several starts")
    assert note.startswith("Several starts: ScalarizedAdvantages: seed 0 is x/version_7 (100 updates), not x/version_3")
    assert "x/version_3 (100, other numbers)" in note and "x/version_10 (30)" in note and "seed 1" not in note
    assert sum(f"x/version_{n} (" in note for n in range(11)) == 11


def test_a_fork_is_two_runs_that_share_the_beginning(make_run, tmp_path):
    make_run("x/version_0", updates=50, scalars=noisy(0))
    for n, seed in ((1, 0), (2, 5)):
        make_run(f"x/version_{n}", resumed("x/version_0"), seed=seed, start=50, scalars=noisy(n))
    found = collected(tmp_path)
    [method] = found.methods
    assert [(run.seed, run.folders) for run in method.runs] == [
        (0, ("x/version_0", "x/version_1")),
        (5, ("x/version_0", "x/version_2")),
    ]
    beginning = noisy(0)["reward/mean"]
    for run in method.runs:
        assert run.series["reward/mean"].values[:50] == pytest.approx([beginning(u) for u in range(50)], abs=1e-4)
    assert found.notes == [
        "x/version_1, x/version_2 share their beginning, x/version_0: as seeds they are not independent."
    ]


def test_a_fork_of_one_seed_shows_the_branch_that_went_further(make_run, tmp_path):
    make_run("x/version_0", updates=50, scalars=noisy(0))
    make_run("x/version_1", resumed("x/version_0"), start=50, scalars=noisy(1))
    make_run("x/version_2", resumed("x/version_0"), start=50, updates=70, scalars=noisy(2))
    found = collected(tmp_path)
    assert [run.folders[-1] for run in found.methods[0].runs] == ["x/version_1"]
    [note] = notes(found, "Several starts")
    assert "seed 0 is x/version_1 (100 updates), not x/version_2 (70, other numbers)." in note


def test_a_finished_run_stays_while_a_checkpoint_of_it_is_tried_again(make_run, tmp_path):
    make_run("x/version_0", scalars=noisy(0))
    make_run("x/version_1", resumed("x/version_0"), start=50, updates=60, scalars=noisy(1))
    found = collected(tmp_path)
    [run] = found.methods[0].runs
    assert run.folders == ("x/version_0",) and run.updates == 100
    assert "not x/version_1 (60, other numbers)" in notes(found, "Several starts")[0]


def test_another_method_does_not_continue_a_run(make_run, tmp_path):
    make_run("x/version_0", updates=50, scalars=noisy(0))
    make_run("x/version_1", {**resumed("x/version_0"), **REWARDS}, start=50, scalars=noisy(1))
    found = collected(tmp_path)
    assert [run.folders for method in found.methods for run in method.runs] == [("x/version_0",), ("x/version_1",)]
    assert len(notes(found, "ScalarizedRewards, seed 0: begins at update 50")) == 1


def test_a_checkpoint_is_told_by_its_whole_path(make_run, tmp_path):
    """The same names are in other folders too."""
    make_run("old/runs/x/version_0", updates=50, scalars={"reward/mean": lambda u: 0})
    make_run("new/runs/x/version_0", updates=50, scalars={"reward/mean": lambda u: 1})
    make_run("new/runs/x/version_1", resumed("runs/x/version_0"), start=50, scalars={"reward/mean": lambda u: 2})
    values = collected(tmp_path).methods[0].runs[0].series["reward/mean"].values
    assert values.tolist() == [1] * 50 + [2] * 50


def test_runs_that_were_moved_together_still_belong_together(make_run, tmp_path):
    make_run("there/x/version_0", updates=50)
    make_run("there/x/version_1", resumed(tmp_path / "there/x/version_0"), start=50)
    shutil.move(tmp_path / "there", tmp_path / "here")
    [run] = collected(tmp_path / "here").methods[0].runs
    assert run.folders == ("x/version_0", "x/version_1") and run.begins == 0
    # The run that is still in its place is meant, also where it isn't among these.
    make_run("there/x/version_0", updates=50)
    shutil.rmtree(tmp_path / "here/x/version_0")
    make_run("here/x/version_0", updates=50)
    [run] = collected(tmp_path / "here").methods[0].runs
    assert run.folders == ("x/version_1",) and run.begins == 50


def weights(folder, fingerprint):
    record = {"name": "packaged:driver", "path": "/somewhere", "fingerprint": fingerprint}
    (folder / "weights.json").write_text(json.dumps(record))


def test_runs_from_different_weights_are_different_methods(make_run, tmp_path):
    weights(make_run("x/version_0", scalars=noisy(0)), "8c1f0a2b6d3e")
    weights(make_run("x/version_1", seed=1, scalars=noisy(1)), "0a2b6d3e8c1f")
    weights(make_run("x/version_2", seed=2, scalars=noisy(2)), "8c1f0a2b6d3e")
    found = {method.label: [run.seed for run in method.runs] for method in collected(tmp_path).methods}
    assert found == {"weights=8c1f0a2b6d3e": [0, 2], "weights=0a2b6d3e8c1f": [1]}


def test_a_resumed_run_began_from_the_weights_of_its_first_folder(make_run, tmp_path):
    weights(make_run("x/version_0", updates=50), "8c1f0a2b6d3e")
    make_run("x/version_1", resumed("x/version_0"), start=50)
    [run] = collected(tmp_path).methods[0].runs
    assert run.updates == 100 and run.method["weights"] == "8c1f0a2b6d3e"


def test_weights_that_cannot_be_read_keep_a_run_apart(make_run, tmp_path):
    make_run("x/version_0", scalars=noisy(0))
    path = make_run("x/version_1", seed=1, scalars=noisy(1)) / "weights.json"
    for text in ("{", "[]", "{}"):
        path.write_text(text)
        found = collected(tmp_path)
        assert len(found.methods) == 2 and notes(found, str(path)) == found.notes and len(found.notes) == 1
