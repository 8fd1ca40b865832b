"""What is read of a run's logs: resumed runs, tests, non-finite values, CSV."""

import json

import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.run.logs import METRICS, Log
from lightning_cgrpo.run.runs import read_record, read_run
from tests.cli.report.conftest import summary


def read(folder):
    return read_run(folder, read_record(folder / SUMMARY))


def test_a_resumed_run_has_the_series_of_its_earlier_folders(make_run):
    one = {"reward/mean": lambda u: u}
    make_run("x/version_0", updates=60, scalars=one, tests={"test/reward/mean": 0.25})
    make_run("x/version_1", start=40, updates=80, scalars={"reward/mean": lambda u: 2 * u}, resumed="../version_0")
    last = make_run("x/version_2", start=80, updates=100, scalars=one, resumed="../version_1")
    run = read(last)
    values = run.series["reward/mean"].values
    assert (values[39], values[40], values[79], values[80]) == (39, 80, 158, 80) and len(values) == 100
    assert run.tests == {}, "a test of an earlier checkpoint is no test of this run"


def test_updates_after_the_summary_are_left_out(make_run):
    """A run resumed from an older checkpoint, which has not come as far as before."""
    make_run("x/version_0", updates=60)
    assert len(read(make_run("x/version_1", start=40, updates=50, resumed="../version_0")).series["reward/mean"]) == 50


def test_final_values_are_means_over_the_last_eighth(make_run):
    run = read(make_run("x/version_0", scalars={"reward/mean": lambda u: u, "rate/lava": lambda u: float("nan")}))
    assert run.final == {"reward/mean": pytest.approx((88 + 99) / 2)} and set(run.series) == {"reward/mean"}


def test_the_last_test_counts(make_run):
    tests = [{"test/reward/mean": 0.5, "test_train/reward/mean": 1.0}, {"test/reward/mean": 0.75}]
    folder = make_run("x/version_0", tests=tests[0])
    with SummaryWriter(str(folder), filename_suffix=".later") as writer:
        writer.add_scalar("test/reward/mean", 0.75, 50)
    for file in folder.glob("*.later"):
        file.rename(folder / "events.out.tfevents.9999999999.x.later")
    assert read(folder).tests == tests[1]


def test_a_csv_log(tmp_path):
    folder = tmp_path / "version_0"
    (folder / "test").mkdir(parents=True)
    (folder / METRICS).write_text("step,reward/mean,rate/lava\n0,1.0,\n1,2.0,0.5\n2,inf,0.2\n3,4")
    (folder / "test" / METRICS).write_text("step,test/reward/mean\n4,0.5\n")
    log = Log()
    log.add(folder)
    assert log.scalars == {"reward/mean": {0: 1, 1: 2, 3: 4}, "rate/lava": {1: 0.5, 2: 0.2}}
    assert log.tests == {"test/reward/mean": 0.5}
    (folder / SUMMARY).write_text(json.dumps(summary(updates=4, asked=4)))
    assert read(folder).final["reward/mean"] == 4
