"""Runs in processes: commands that stand in for training end well, fail, are killed or stopped."""

import json
import os
import signal
import sys
import threading
import time

import pytest
from filelock import FileLock

from lightning_cgrpo.cli.study import execution
from lightning_cgrpo.cli.study.execution import Children, execute, train_here
from lightning_cgrpo.cli.study.state import commands_left, describe_state, identity, read_notes, record_of
from lightning_cgrpo.cli.study.study import Run, configuration
from lightning_cgrpo.core.output import SUMMARY
from tests.cli.report.conftest import summary

FIT = """
import os, sys, time
print("words", sys.argv[1:])
if sys.argv[1] == "fit":
    folder = os.environ["RUN_FOLDER"] + "/version_0"
    os.makedirs(folder, exist_ok=True)
    open(folder + "/config.yaml", "w").close()
    open(folder + "/part", "w").write({text!r})
    os.replace(folder + "/part", folder + "/summary.json")
{body}
"""
FAILS = "print('lightning_cgrpo: error: no room', file=sys.stderr); print('The traceback is in x.'); sys.exit(2)"
BODIES = {"good": "", "fails": FAILS, "killed": "os.kill(os.getpid(), 9)", "slow": "time.sleep(60)", "early": ""}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Commands run a script, whose behavior the variant's name tells, instead of the package."""

    def command(words):
        name = next(word for word in words if word.startswith("--trainer.logger.name=")).split("=", 1)[1]
        variant, _, seed = name.partition(",seed=")
        updates = 10 if variant == "good" else 4
        about = summary(config=configuration(make(variant, int(seed))), updates=updates, asked=10)
        body = BODIES["fails" if words[0] == "export" else variant]
        return [sys.executable, "-c", FIT.format(body=body, text=json.dumps(about)), *words]

    monkeypatch.setattr(execution, "_python_command", command)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for cached in (identity, configuration):
        cached.cache_clear()


def make(variant, seed=0):
    given = ("-c", "configs/gridworld.yaml", "--trainer.max_steps=10", f"--model.group_size={len(variant) + 1}")
    return Run(variant, seed, given, "runs/mine")


def output(run):
    return (run.folder / "output.txt").read_text()


def test_a_run_trains_and_what_comes_after_runs_in_its_configuration():
    run = make("good")
    after = [("test", "--ckpt_path=last", "--callbacks.table.path=$RUN_FOLDER/x")]
    assert execute(run, after, Children()) is None
    told = [line for line in output(run).splitlines() if line.startswith("words")]
    assert "'fit', '-c', 'configs/gridworld.yaml'" in told[0] and "'--seed_everything=0'" in told[0]
    assert "'test', '-c'" in told[1] and told[1].endswith(f"'--callbacks.table.path={run.folder}/x']")
    assert not commands_left(run, after) and len(commands_left(run, [*after, ("export",)])) == 1


def test_failures_are_named_by_the_last_line_of_their_error_and_the_rest_is_finished():
    runs = [make(variant, seed) for seed in range(2) for variant in ("fails", "good", "killed", "early")]
    ended = dict(train_here(runs, [], 2))
    errors = {
        "fails": "no room",
        "good": None,
        "killed": "ended by SIGKILL, which a lack of memory causes",
        "early": "its process ended without an error after 4 of 10 updates",  # as by sys.exit(0) in a reward function
    }
    assert {run.name: error for run, error in ended.items()} == {run.name: errors[run.variant] for run in runs}
    assert describe_state(runs[0]) == "failed at 4 of 10: no room"
    assert describe_state(runs[3]).startswith("failed at 4 of 10: its process")


def test_a_failure_after_training_is_no_reason_to_train_again():
    run = make("good")
    assert execute(run, [("export",)], Children()) == "no room"
    assert describe_state(run) == "trained, but failed afterwards: no room"
    assert execute(run, [("test",)], Children()) is None
    assert output(run).count("'fit'") == 1 and read_notes(run).get("error") is None


def test_what_has_ended_well_after_training_is_not_run_again():
    run, after = make("good"), [("test",), ("export",)]
    assert execute(run, after, Children()) == "no room"
    assert execute(run, after, Children()) == "no room" and commands_left(run, after) == [("export",)]
    assert output(run).count("'test'") == 1 and output(run).count("'export'") == 2


def test_one_process_trains_a_run_at_a_time():
    run = make("good")
    run.folder.mkdir(parents=True)
    with FileLock(run.folder / ".lock"):
        assert execute(run, [], Children()) == "another process trains this run"
    assert record_of(run) is None


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_children_and_begins_no_other(at_once, number):
    runs = [make("slow", seed) for seed in range(4)]

    def interrupt():
        while not all((run.folder / "version_0" / SUMMARY).exists() for run in runs[:at_once]):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    before, started = signal.getsignal(number), time.monotonic()
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(train_here(runs, [], at_once))
    thread.join()
    assert time.monotonic() - started < 30 and signal.getsignal(number) is before
    assert [describe_state(run) for run in runs[:at_once]] == ["interrupted at 4 of 10"] * at_once
    assert [describe_state(run) for run in runs[at_once:]] == ["open"] * (4 - at_once)
    assert os.system(f"ps -eo args | grep -v grep | grep -q 'name=slow,seed=0.*{runs[0].logs}'") != 0
