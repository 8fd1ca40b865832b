"""Saved runs, damaged files, and which runs are seeds of one method."""

import json

import numpy as np
import pytest

from lightning_cgrpo.cli.report.methods import collect
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.run.runs import read_record, read_run, save_run, saved_run
from tests.cli.report.conftest import changed, summary
from tests.refusals import refused

REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}


def collected(*sources):
    [methods] = collect([source if isinstance(source, tuple) else (None, source) for source in sources]).values()
    return {method.label: [run.seed for run in method.runs] for method in methods}


def test_a_saved_run_is_the_same_run(make_run, tmp_path):
    folder = make_run("x/version_0", tests={"test/reward/mean": 0.5}, faults={"goal": 3})
    run = read_run(folder, read_record(folder / SUMMARY))
    save_run(run, tmp_path / "a.json")
    again = saved_run(read_record(tmp_path / "a.json"))
    assert (again.final, again.tests, again.width) == (run.final, run.tests, run.width)
    assert again.record.as_json() == run.record.as_json() and again.bounds == run.bounds
    for tag, series in run.series.items():
        assert np.array_equal(again.series[tag].steps, series.steps)
        assert np.array_equal(again.series[tag].values, series.values)
    save_run(again, tmp_path / "b.json")
    assert (tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    assert (tmp_path / "a.json").stat().st_size < 20_000


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"updates"', '"update"'),
        lambda text: text.replace('"seed": 0', '"seed": "none"'),
        lambda text: text.replace('"at_most", "threshold"', '"at_most", "thresold"'),
        lambda text: text.replace('"faults": {}', '"faults": {}, "series": {"reward/mean": "high"}'),
    ],
)
def test_a_damaged_file_is_told_in_one_line(tmp_path, damage):
    text = json.dumps(summary())
    (tmp_path / SUMMARY).write_text(damage(text))
    assert damage(text) != text
    message = refused(read_record, tmp_path / SUMMARY)
    assert "summary.json' to be the summary of a run, but got a damaged file" in message


def test_other_files_are_no_runs(tmp_path):
    (tmp_path / "scores.json").write_text('{"status": "finished"}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert read_record(tmp_path / "scores.json") is None and read_record(tmp_path / "binary.json") is None
    for path, complaint in ((tmp_path, "Found no run in"), (tmp_path / "none", "There is no")):
        assert complaint in refused(collect, [(None, path)])


def test_runs_with_the_same_settings_are_seeds_of_one_method(make_run, tmp_path):
    for seed in (1, 0):
        make_run(f"runs/grid,seed={seed}/version_0", seed=seed)
        make_run(f"runs/grid,rewards,seed={seed}/version_0", REWARDS, seed=seed)
    assert collected(tmp_path / "runs") == {"grid": [0, 1], "grid,rewards": [0, 1]}
    make_run("runs/grid,seed=2/version_0", seed=2, weights="8c1f")
    assert collected(tmp_path / "runs") == {"grid": [0, 1], "grid,rewards": [0, 1], "grid #2": [2]}
    named = ("mine", tmp_path / "runs/grid,seed=0")
    assert collected(named, tmp_path / "runs/grid,seed=1") == {"mine": [0], "grid": [1]}


def test_of_several_starts_of_a_seed_the_furthest_counts(make_run, tmp_path):
    make_run("x/version_0", updates=50)
    make_run("x/version_1", updates=30)
    make_run("x/version_2", updates=40, asked=40)
    [[method]] = collect([(None, tmp_path / "x")]).values()
    assert [run.updates for run in method.runs] == [50]
    # A folder that another run continues is no start.
    make_run("x/version_3", start=50, updates=60, resumed="../version_0")
    [[method]] = collect([(None, tmp_path / "x")]).values()
    assert [run.updates for run in method.runs] == [60] and len(method.runs[0].series["reward/mean"]) == 60


def test_tasks_are_kept_apart(make_run, tmp_path):
    for name in ("GridworldTask", "GSM8KTask"):
        make_run(f"{name}/version_0", {"model.init_args.task": {"class_path": f"lightning_cgrpo.{name}"}}, updates=3)
    assert list(collect([(None, tmp_path)])) == ["GSM8K", "Gridworld"]


def test_a_run_from_python_is_known_by_its_name(make_run, tmp_path):
    for seed in (0, 1):
        make_run(f"a/version_{seed}", seed=seed, updates=3, method={})
    make_run("b/version_0", updates=3, method={})
    assert collected(tmp_path) == {"a": [0, 1], "b": [0]}
    assert summary(config=changed())["method"] != {}
