"""Reading events files, and several of them as one log."""

import pytest

from lightning_cgrpo.reporting.logs import merged, read


def only(folder):
    [file] = folder.glob("*tfevents*")
    return file


def test_reads_what_a_report_shows(make_run):
    folder = make_run("a", updates=3, evaluations={"test/reward/mean": 0.5, "val/rate/lava": 0.25, "time/rollout": 1})
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


def test_later_steps_win(make_run):
    """The second file goes on from update 6: what the first one did after that never was."""
    first = read(only(make_run("a", updates=10, scalars={"reward/mean": lambda u: u, "rate/lava": lambda u: 1})))
    second = read(only(make_run("b", start=6, updates=9, scalars={"reward/mean": lambda u: 100 + u})))
    for files in ([first, second], [second, first]):
        log = merged(files)
        assert log.scalars["reward/mean"].steps.tolist() == list(range(10))
        assert log.scalars["reward/mean"].values.tolist() == [0, 1, 2, 3, 4, 5, 106, 107, 108, 9]
        # Also where it logged less.
        assert log.scalars["rate/lava"].steps.tolist() == [0, 1, 2, 3, 4, 5, 9]
        assert list(log.histograms["lava"]) == list(range(10))


def test_no_steps_of_two_trainings_alternate(make_run):
    first = read(only(make_run("a", updates=10, scalars={"reward/mean": lambda u: 0})))
    folder = make_run("b", start=2, updates=3, scalars={"reward/mean": lambda u: 1})
    make_run("b", start=8, updates=9, scalars={"reward/mean": lambda u: 1})
    from lightning_cgrpo.reporting.logs import EventsFile, Series  # a sparser log, of updates 2 and 8

    parts = [read(path) for path in folder.glob("*tfevents*")]
    sparse = merged(parts).scalars["reward/mean"]
    assert sparse.steps.tolist() == [2, 8]
    again = EventsFile(folder, first.started + 1, {"reward/mean": Series(sparse.steps, sparse.values)})
    assert merged([first, again]).scalars["reward/mean"].steps.tolist() == [0, 1, 2, 8, 9]
