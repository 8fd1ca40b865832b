"""Runs in processes: commands that stand in for training end well, fail, are killed or stopped."""

import io
import os
import signal
import sys
import threading
import time

import pytest
from rich.console import Console

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.studies import execution
from lightning_cgrpo.studies.display import Display
from lightning_cgrpo.studies.execution import execute, here, on_cluster
from lightning_cgrpo.studies.ledger import (
    FINISHED,
    Ledger,
    answers_per_update,
    begun,
    fingerprint,
    note,
    read_json,
    state,
)
from lightning_cgrpo.studies.processes import Children
from lightning_cgrpo.studies.study import Run, configuration

FIT = """
import os, sys, time
print("words", sys.argv[1:])
path = os.environ.get("LIGHTNING_CGRPO_PROGRESS")
if path:
    open(path + ".part", "w").write("10 10")
    os.replace(path + ".part", path)
{body}
"""
FAILS = "print('lightning_cgrpo: error: no room', file=sys.stderr); print('The traceback is in x.'); sys.exit(2)"
BODIES = {
    "good": "sum(range(10_000_000))",
    "fails": FAILS,
    "killed": "os.kill(os.getpid(), 9)",
    "slow": "time.sleep(60)",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Commands run a script, whose behavior the variant's name tells, instead of the package."""

    def command(words):
        variant = next(word for word in words if word.startswith("--trainer.logger.name=")).split("=")[1].split(",")[0]
        body = "" if words[0] != "fit" and variant == "good" else BODIES[variant]
        return [sys.executable, "-c", FIT.format(body=body), *words]

    monkeypatch.setattr(execution, "_command", command)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for cached in (fingerprint, configuration):
        cached.cache_clear()


def make(variant, seed=0):
    given = ("-c", "configs/gridworld.yaml", "--trainer.max_steps=10", f"--model.group_size={len(variant)}")
    return Run(variant, seed, given, "runs/mine")


def output(run):
    return (run.folder / "output.txt").read_text()


def test_answers_are_counted_with_the_defaults_that_training_wrote(folder):
    run = make("good")
    assert answers_per_update(run) == 8 * len("good")
    note(run, {})
    (run.folder / "version_0").mkdir()
    text = "model: {init_args: {group_size: 5}}\ndata: {init_args: {prompts_per_update: 3}}\n"
    (run.folder / "version_0/config.yaml").write_text(text)
    assert execute(run, [], Children()) is None and read_json(run.folder / FINISHED)["answers"] == 150


def test_a_run_trains_and_what_comes_after_runs_in_its_configuration(folder):
    run = make("good")
    after = [
        ("test", "--ckpt_path=last", "--callbacks.table.path=$RUN_FOLDER/x"),
        ("!", 'echo "$RUN_FOLDER" > shell.txt'),
    ]
    assert execute(run, after, Children()) is None
    told = [line for line in output(run).splitlines() if line.startswith("words")]
    assert "'fit', '-c', 'configs/gridworld.yaml'" in told[0] and "'--seed_everything=0'" in told[0]
    assert "'test', '-c'" in told[1] and told[1].endswith(f"'--callbacks.table.path={run.folder}/x']")
    assert (folder / "shell.txt").read_text() == f"{run.folder}\n"
    record = read_json(run.folder / FINISHED)
    assert record["updates"] == 10 and 0 < record["cpu_seconds"] < 60 and 1 < record["peak_mb"] < 4000


def test_a_failed_run_is_named_by_the_last_line_of_its_error_and_the_rest_is_finished():
    runs = [make(variant, seed) for seed in range(2) for variant in ("fails", "good", "killed")]
    ended = dict(here(runs, [], 2))
    killed = "ended by SIGKILL, which a lack of memory causes"
    assert {run.name: error for run, error in ended.items()} == {
        f"{variant},seed={seed}": {"fails": "no room", "good": None, "killed": killed}[variant]
        for seed in range(2)
        for variant in ("fails", "good", "killed")
    }
    assert state(runs[0]) == "failed at 10: no room" and not (runs[0].folder / FINISHED).exists()


def test_a_failure_after_training_is_no_reason_to_train_again():
    run = make("good")
    assert execute(run, [("!", "echo first; exit 3")], Children()) == "first"
    spent = begun(run)["cpu_seconds"]
    assert execute(run, [("!", "true")], Children()) is None
    assert output(run).count("\nwords") == 1 and read_json(run.folder / FINISHED)["cpu_seconds"] == spent


def test_a_second_sitting_adds_its_cost():
    run = make("good")
    note(run, {"seconds": 100.0, "cpu_seconds": 50.0, "peak_mb": 9000, "trained": False})
    assert execute(run, [], Children()) is None
    record = read_json(run.folder / FINISHED)
    assert record["seconds"] > 100 and record["cpu_seconds"] > 50 and record["peak_mb"] == 9000


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_children_and_begins_no_other(at_once, number):
    runs = [make("slow", seed) for seed in range(4)]

    def interrupt():
        while not all((run.folder / "progress.txt").exists() for run in runs[:at_once]):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    before, started = signal.getsignal(number), time.monotonic()
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(here(runs, [], at_once))
    thread.join()
    assert time.monotonic() - started < 30 and signal.getsignal(number) is before
    assert [state(run) for run in runs[:at_once]] == ["interrupted at 10 of 10"] * at_once
    assert [state(run) for run in runs[at_once:]] == ["open"] * (4 - at_once)
    assert os.system(f"ps -eo args | grep -v grep | grep -q 'name=slow,seed=0.*{runs[0].logs}'") != 0


def test_jobs_of_a_cluster():
    """submitit's executor in this process; a job that fails is an outcome like others."""
    runs = [make("good"), make("fails")]
    ended = {run.variant: error for run, error in on_cluster(runs, [], None, "cluster=debug")}
    assert ended == {"good": None, "fails": "no room"}
    ledger = Ledger(runs[0].folder.parent, runs[0].folder.parent / "report")
    assert ledger.finished(runs[0]) and not ledger.finished(runs[1])


@pytest.mark.parametrize("given", ["partition", "cluster=nowhere", "cluster=slurm", "cluster=debug,timeout_min=soon"])
def test_wrong_settings_of_jobs(given):
    with pytest.raises(UserError, match="--slurm") as caught:
        list(on_cluster([make("good")], [], None, given))
    assert "\n" not in str(caught.value)


def test_the_display_counts_this_sitting_and_leaves_out_failed_runs(monkeypatch):
    runs = [make("good", seed) for seed in range(3)]
    done = {run.name: (60, 100) for run in runs[:1]}
    monkeypatch.setattr("lightning_cgrpo.studies.display.progress", lambda run: done.get(run.name, (0, 100)))
    screen = io.StringIO()
    display = Display(runs, Console(file=screen, width=40))
    display.started -= 600  # ten minutes ago
    assert display.describe() == "0 of 3 runs, 60 of 300 updates, 10 min"
    done |= {runs[0].name: (100, 100), runs[1].name: (10, 100)}
    display.end(runs[0], None)
    # 50 updates took ten minutes, 190 are left.
    assert display.describe() == "1 of 3 runs, 110 of 300 updates, 10 min, 38 min left"
    display.end(runs[1], "no room")
    assert display.describe() == "1 of 3 runs, 110 of 210 updates, 10 min, 20 min left"
    assert screen.getvalue() == "good,seed=1 failed: no room (all output: runs/mine/good,seed=1/output.txt)\n"


def test_the_display_prints_a_line_now_and_then(monkeypatch):
    screen = io.StringIO()
    with Display([make("good")], Console(file=screen), interval=0.1):
        time.sleep(2.2)
    assert screen.getvalue().splitlines()[0] == "0 of 1 runs, 0 of 10 updates, 0 min"
