"""The command of an experiment: trains what is not finished, on all cores, and reports what is.

A run that is finished is saved with its set's report, docs/results/<experiment>/<set>, and not trained again: to
reproduce the results rather than add to them, give another folder, --results. Git ignores the report's CSV, TeX and
PDF files in docs/results, because the Markdown and PNG files show the same.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.runner.experiment import Experiment, Run
from benchmarks.runner.ledger import Ledger
from benchmarks.runner.worker import work
from lightning_cgrpo.reporting.command import main as report


def train(runs: Sequence[Run], logs: Path, workers: int, lanes: int) -> dict[str, str]:
    """Train runs; returns the errors of those that failed, by name."""
    context = multiprocessing.get_context("spawn")
    taken, messages = context.Value("i", 0), context.Queue()
    workers = min(workers, len(runs))
    lanes = min(lanes, -(-len(runs) // workers))
    # On a thread each: more would compete for the cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes = [
        context.Process(target=work, args=(runs, taken, lanes, str(logs), messages), daemon=True)
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    errors: dict[str, str] = {}
    with Display(runs) as display:
        while any(process.is_alive() for process in processes) or not messages.empty():
            with contextlib.suppress(queue.Empty):
                name, updates, error = messages.get(timeout=1)
                display.show(name, updates, error is not None)
                if error is not None:
                    errors[name] = error
    return errors


class Display:
    """Progress over all runs and the time left: a bar on a terminal, otherwise a line a minute.

    A run that goes on from a checkpoint counts from there, so its first updates are no progress of this sitting.
    """

    COLUMNS = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("updates"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )

    def __init__(self, runs: Sequence[Run]) -> None:
        self.updates = {run.name: run.updates for run in runs}
        self.done: dict[str, int] = {}
        self.over: set[str] = set()
        self.began, self.skipped, self.printed = time.monotonic(), 0, 0.0
        self.progress = Progress(*self.COLUMNS, speed_estimate_period=600, disable=not sys.stdout.isatty())
        self.bar = self.progress.add_task("", total=sum(self.updates.values()))

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, name: str, updates: int, failed: bool) -> None:
        """A run is this far."""
        if name not in self.done:
            self.skipped += updates
            self.done[name] = updates
        if failed:
            # Neither done nor to be waited for.
            self.skipped += self.updates[name] - self.done[name]
            updates = self.updates[name]
        self.done[name] = updates
        if updates == self.updates[name]:
            self.over.add(name)
        if failed:
            self.progress.console.print(f"{name} failed", style="red")
        done, total = sum(self.done.values()), sum(self.updates.values())
        runs = f"{len(self.over)} of {len(self.updates)} runs"
        self.progress.update(self.bar, completed=done - self.skipped, total=total - self.skipped, description=runs)
        elapsed = time.monotonic() - self.began
        if self.progress.disable and (elapsed - self.printed > 60 or done == total) and done > self.skipped:
            self.printed = elapsed
            left = elapsed * (total - done) / (done - self.skipped) / 60
            print(f"{runs}, {done:,} of {total:,} updates, {elapsed / 60:.0f} min, {left:.0f} min left", flush=True)


def write_report(runs: Sequence[Run], ledger: Ledger, folder: Path) -> None:
    """A report of what is finished of some runs."""
    sources = []
    for run in runs:
        if ledger.in_logs(run):
            ledger.enter(run)
            sources.append(ledger.logs / run.name)
        elif ledger.in_results(run):
            sources.append(ledger.saved[run.name])
    if sources:
        report([*map(str, sources), "--out", str(folder)])


def positive(text: str) -> int:
    """An argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"Expected a positive number, but got '{text}'.")
    return int(text)


def main(experiment: Experiment) -> None:
    """The command.

    Args:
        experiment: whose sets it can run.
    """
    sets, standard = experiment.sets, experiment.standard
    parser = argparse.ArgumentParser(description=experiment.help, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser.add_argument(
        "sets", nargs="*", metavar="SET", help=f"of {', '.join(sets)}; by default {', '.join(standard)}"
    )
    parser.add_argument("--logs", type=Path, default=experiment.logs, help="folder of the runs' logs")
    parser.add_argument("--results", type=Path, default=experiment.results, help="folder of the reports")
    parser.add_argument("--workers", type=positive, default=cores, help="processes; by default one per core")
    parser.add_argument("--lanes", type=positive, default=experiment.lanes, help="runs at a time in each process")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--list", action="store_true", help="only name the runs and whether they are finished")
    parser.add_argument("--report", action="store_true", help="train nothing, report what is finished")
    options = parser.parse_args()
    for name in options.sets:
        if name not in sets:
            parser.error(f"Expected sets of {', '.join(sets)}, but got '{name}'.")
    chosen = {name: sets[name]() for name in options.sets or standard}
    runs = [run for part in chosen.values() for run in part if options.only in run.name]
    if not runs:
        parser.error(f"Expected --only to be a part of some run's name (see --list), but got '{options.only}'.")
    ledger = Ledger(options.logs, options.results)
    todo = [run for run in runs if not ledger.finished(run)]
    if options.list:
        for run in runs:
            print("open    " if run in todo else "finished", run.name)
        return
    errors: dict[str, str] = {}
    if todo and not options.report:
        started = time.monotonic()
        errors = train(todo, options.logs, options.workers, options.lanes)
        failed = [run.name for run in todo if not ledger.in_logs(run)]
        print(f"{len(todo) - len(failed)} runs took {(time.monotonic() - started) / 60:.1f} minutes.")
        errors |= {name: "It ended without an error, but not finished." for name in failed if name not in errors}
    for name, part in chosen.items():
        write_report([*part, *experiment.compared.get(name, list)()], ledger, options.results / name)
        if experiment.extra is not None:
            finished = [run.name for run in part if ledger.finished(run)]
            experiment.extra(options.logs, options.results / name, finished)
    ledger.write()
    if errors:
        sys.exit("\n".join(f"{name} failed: {error}" for name, error in errors.items()))
