"""Identical runs and collapsed policies are told."""

import numpy as np
import pytest

from lightning_cgrpo.reporting import saved_runs as saved
from lightning_cgrpo.reporting.collect import collect

LAST = 1 / 8
REWARDS = {"model.init_args.estimator": {"class_path": "lightning_cgrpo.ScalarizedRewards"}}


def notes(*paths, start="Identical"):
    tasks = collect([(None, path) for path in paths], LAST).tasks
    return [note for task in tasks for note in task.notes if note.startswith(start)]


def noisy(seed, levels=None):
    """Scalars that differ by seed; of so many levels, as a mean over few answers has."""
    random = np.random.default_rng(seed)
    rows = random.random((2, 200)) if levels is None else random.integers(0, levels, (2, 200)) / levels
    return {
        "reward/mean": lambda u: rows[0, u],
        "rate/lava": lambda u: rows[1, u],
        "threshold/lava": lambda u: 0.1,
        "multiplier/lava": lambda u: 0.5,
    }


def test_seeds_that_changed_nothing_are_told_first(make_run, tmp_path):
    """A configuration whose seed reached nothing: `0.133 ± 0.000` is no statistic."""
    for seed in (0, 1):
        make_run(f"x/version_{seed}", seed=seed, scalars=noisy(0))
    make_run("x/version_2", seed=2, scalars=noisy(2))
    make_run("x/version_3", REWARDS, scalars=noisy(0))
    [task] = collect([(None, tmp_path)], LAST).tasks
    assert task.notes[0] == (
        "Identical: ScalarizedAdvantages, seeds 0, 1; ScalarizedRewards, seed 0: all series are equal, number for "
        "number, over 100 updates. They are one training, counted several times."
    )
    assert len(notes(tmp_path)) == 1


@pytest.mark.parametrize("updates", [3, 1000])
def test_constants_and_short_runs_prove_nothing(make_run, tmp_path, updates):
    short = updates == 3
    for seed in (0, 1):
        scalars = noisy(0) if short else {"reward/mean": lambda u: 0, "rate/lava": lambda u: float(u == 5)}
        make_run(f"x/version_{seed}", seed=seed, updates=min(updates, 100), scalars=scalars, histograms=0)
    assert notes(tmp_path) == []


def test_coarse_values_are_equal_by_chance(make_run, tmp_path):
    """Four updates of two possible values: some of 40 seeds are alike."""
    values = []
    for seed in range(40):
        scalars = noisy(seed, levels=2)
        values.append(tuple(scalars[tag](u) for u in range(4) for tag in ("reward/mean", "rate/lava")))
        make_run(f"x/version_{seed}", seed=seed, updates=4, scalars=scalars, histograms=0)
    assert len(set(values)) < 40 and notes(tmp_path) == []


def test_one_different_number_is_enough(make_run, tmp_path):
    make_run("x/version_0", scalars=noisy(0))
    other = noisy(0)
    make_run("x/version_1", seed=1, scalars={**other, "multiplier/lava": lambda u: 0.5 + 0.01 * (u == 99)})
    assert notes(tmp_path) == []


def test_a_run_is_compared_as_far_as_it_has_come(make_run, tmp_path):
    """In bins of 10 updates, the last of which is not full."""
    asked = {"trainer.max_steps": 1000}
    make_run("x/version_0", asked, updates=155, scalars=noisy(0))
    make_run("x/version_1", asked, seed=1, updates=180, scalars=noisy(0))
    [note] = notes(tmp_path)
    assert "over 155 updates" in note


def test_saved_runs_are_compared_like_their_logs(make_run, tmp_path):
    folders = [make_run(f"x/version_{seed}", seed=seed, scalars=noisy(0)) for seed in (0, 1)]
    run = collect([(None, folders[0])], LAST).methods[0].runs[0]
    saved.write_all([("a", run)], LAST, tmp_path / "saved")
    assert len(notes(tmp_path / "saved", folders[1])) == 1


def test_a_collapse_is_told_and_saved(make_run, tmp_path):
    collapsed = {**noisy(0), "policy/collapsed_since": lambda u: 60 if u > 70 else float("nan")}
    make_run("x/version_0", scalars=collapsed)
    make_run("x/version_1", seed=1, scalars=noisy(1))
    make_run("x/version_2", seed=2, scalars={**noisy(2), "policy/collapsed_since": lambda u: 1200})
    expected = ["Collapsed: ScalarizedAdvantages: from update 60 on (seed 0), from update 1,200 on (seed 2)."]
    assert notes(tmp_path / "x", start="Collapsed") == expected
    runs = collect([(None, tmp_path / "x")], LAST).methods[0].runs
    assert not any(tag.startswith("policy") for run in runs for tag in run.series)
    saved.write_all([("a", run) for run in runs], LAST, tmp_path / "saved")
    assert notes(tmp_path / "saved", start="Collapsed") == expected
    assert "collapsed" not in (tmp_path / "saved" / "a_seed1.json").read_text()
