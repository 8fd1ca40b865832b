"""Reading events files, and several of them as one log."""

import pytest

from lightning_cgrpo.reporting.logs import merged, read


def only(folder):
    [file] = folder.glob("*tfevents*")
    return file


def test_reads_what_a_report_shows(make_run):
    evaluations = {"test/reward/mean": 0.5, "val/rate/lava": 0.25, "time/rollout": 1}
    folder = make_run("a", updates=3, evaluations=evaluations, histograms=1)
    file = read(only(folder))
    assert file.span == (0, 2)
    assert file.scalars["reward/mean"].values == pytest.approx([0, 0.01, 0.02])
    assert {tag: value for tag, (_, value) in file.evaluations.items()} == {
        "test/reward/mean": 0.5,
        "val/rate/lava": 0.25,
    }
    assert not any(tag.startswith("time/") for tag in file.scalars)
    buckets = file.histograms["lava"][2]
    assert (buckets.minimum, buckets.maximum) == (0, 1) and sum(buckets.counts) == 4


def test_a_truncated_file_ends_where_it_ends(make_run, capfd):
    path = only(make_run("a", updates=20))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    first, last = read(path).span
    assert first == 0 and 5 < last < 19
    path.write_bytes(whole[:30])
    assert read(path).span is None
    path.write_bytes(b"")
    assert read(path).span is None
    assert capfd.readouterr() == ("", "")


def test_values_that_are_not_finite_are_left_out(make_run):
    scalars = {"reward/mean": lambda u: float("nan") if u == 1 else u}
    assert read(only(make_run("a", updates=3, scalars=scalars))).scalars["reward/mean"].steps.tolist() == [0, 2]


def test_a_resumed_run_goes_on_from_its_first_update(make_run):
    """The second file goes on from update 6: the later updates of the first one were lost."""
    scalars = {"reward/mean": lambda u: u, "rate/lava": lambda u: 1}
    first = read(only(make_run("a", updates=10, scalars=scalars, histograms=1)))
    second = read(only(make_run("b", start=6, updates=9, scalars={"reward/mean": lambda u: 100 + u}, histograms=1)))
    for folders in ([[first], [second]], [[second, first]]):
        log = merged(folders)
        assert log.scalars["reward/mean"].steps.tolist() == list(range(9))
        assert log.scalars["reward/mean"].values.tolist() == [0, 1, 2, 3, 4, 5, 106, 107, 108]
        # Also where it logged less.
        assert log.scalars["rate/lava"].steps.tolist() == [0, 1, 2, 3, 4, 5]
        assert list(log.histograms["lava"]) == list(range(9))


def test_evaluations_are_of_the_last_checkpoints(make_run):
    """The first folder's test was of a checkpoint in the middle of training."""
    first = read(only(make_run("a", updates=5, evaluations={"test/reward/mean": 0.5, "val/reward/mean": 0.25})))
    second = read(only(make_run("b", start=5, updates=9, evaluations={"val/reward/mean": 0.75})))
    assert merged([[first], [second]]).evaluations == {"val/reward/mean": 0.75}
    assert merged([[first]]).evaluations == {"test/reward/mean": 0.5, "val/reward/mean": 0.25}
