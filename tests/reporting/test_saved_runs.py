"""Saved runs are read back as the logs that they come from."""

import json
import math

import numpy as np
import pytest

from lightning_cgrpo.cli.method import key_of
from lightning_cgrpo.reporting import saved_runs as saved
from lightning_cgrpo.reporting.collect import collect

LAST = 1 / 8


@pytest.fixture
def run(make_run, tmp_path):
    scalars = {
        "reward/mean": lambda u: math.sin(u),
        "rate/lava": lambda u: 0.3 / (u + 1),
        "threshold/lava": lambda u: 0.1,
        "effective_weight/lava": lambda u: 0.5 if u % 7 else math.nan,
        "faults/goal": lambda u: float(u % 30 == 1),
    }
    folder = make_run("x/version_0", seed=4, updates=90, scalars=scalars, evaluations={"val/reward/mean": 0.123456})
    return collect([(None, folder)], LAST).methods[0].runs[0]


def test_round_trip(run, tmp_path):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    again = saved.read(path, LAST)
    assert key_of(again.method) == key_of(run.method)
    for name in ("seed", "updates", "max_updates", "folders"):
        assert getattr(again, name) == getattr(run, name)
    assert again.series.keys() == run.series.keys()
    for tag, series in run.series.items():
        assert np.array_equal(again.series[tag].steps, series.steps), tag
        assert np.array_equal(again.series[tag].values, series.values), tag
        assert np.array_equal(again.smooth(tag).values, run.smooth(tag).values), tag
    for name in ("final", "evaluations", "distributions", "width", "pooled", "begins", "faults"):
        assert getattr(again, name) == getattr(run, name), name
    # A second time nothing changes.
    saved.write(again, LAST, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_keys_are_stable_and_files_small(run, tmp_path):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    record = json.loads(path.read_text())
    assert list(record) == [
        "format", "method", "seed", "folders", "updates", "max_updates", "begins", "last", "final", "evaluations",
        "faults", "pooled", "distributions", "width", "steps", "series",
    ]  # fmt: skip
    assert record["series"]["threshold/lava"] == 0.1
    assert record["evaluations"] == {"val/reward/mean": 0.123456}
    assert record["final"]["rate/lava"] == float(f"{run.final['rate/lava']:.6g}")
    assert path.stat().st_size < 6000


def test_final_values_over_another_part_come_from_the_bins(run, tmp_path):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    expected = np.mean([0.3 / (u + 1) for u in range(45, 90)])
    assert saved.read(path, 0.5).final["rate/lava"] == pytest.approx(expected, rel=1e-3)


def test_a_run_takes_its_own_place_and_no_other(run, tmp_path):
    """Labels follow from the methods at hand: the same label may be another method's the next time."""
    from dataclasses import replace

    folder = tmp_path / "runs"
    other = replace(run, method={**run.method, "precision": "64-true"})
    saved.write_all([("a", run)], LAST, folder)
    saved.write_all([("a", other)], LAST, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a-2_seed4.json", "a_seed4.json"]
    saved.write_all([("b", run), ("a", other)], LAST, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a_seed4.json", "b_seed4.json"]
    assert saved.read(folder / "a_seed4.json", LAST).method["precision"] == "64-true"


def test_other_files(tmp_path):
    path = tmp_path / "x.json"
    for text in (b"[", b"[]", b'{"format": "else"}', b"\xff"):
        path.write_bytes(text)
        assert saved.read(path, LAST) is None
    for text in ('{"format":"lightning_cgrpo run 1","method":{', '{"format":"lightning_cgrpo run 2"}'):
        path.write_text(text)
        with pytest.raises(ValueError):
            saved.read(path, LAST)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", "x"),
        ("updates", None),
        ("evaluations", 5),
        ("evaluations", {"test/reward/mean": "high"}),
        ("method", []),
        ("seed", [1]),
        ("folders", "x"),
        ("final", {"reward/mean": None}),
        ("steps", [1]),
        ("steps", [None] * 90),
        ("series", {"reward/mean": ["a"] * 90}),
        ("distributions", {"lava": [0.1] * 1000}),
        ("last", True),
        ("width", {}),
    ],
)
def test_values_of_wrong_types_are_errors_of_one_kind(run, tmp_path, key, value):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    record = json.loads(path.read_text())
    for broken in ({**record, key: value}, {name: part for name, part in record.items() if name != key}):
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError):
            saved.read(path, LAST)


def test_an_empty_series_is_left_out(run, tmp_path):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    record = json.loads(path.read_text())
    record["series"]["rate/lava"] = [None] * len(record["steps"])
    path.write_text(json.dumps(record))
    assert "rate/lava" not in saved.read(path, LAST).series


def test_a_run_is_written_at_once_or_not_at_all(run, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    saved.write(run, LAST, path)
    before = path.read_text()

    def stop(self, text, **options):
        with self.open("w") as file:
            file.write(text[:100])
        raise OSError

    monkeypatch.setattr("pathlib.Path.write_text", stop)
    with pytest.raises(OSError):
        saved.write(run, LAST, path)
    assert path.read_text() == before
