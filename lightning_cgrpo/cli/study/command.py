"""``python -m lightning_cgrpo study``: train unfinished runs, and report finished runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.study.state import Results, check_distinct, describe_state, identity, progress, record_of
from lightning_cgrpo.cli.study.study import Run, Study, read_study
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.runs import save_run


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: if the study, a run or an argument is wrong.
        SystemExit: with status 1, if a run failed.
    """
    arguments = sys.argv[2:] if argv is None else list(argv)
    options = _make_parser().parse_args(arguments)
    study = read_study(options.study)
    results_folder = options.results or study.logs
    out = options.out or results_folder / "report"
    if out.exists() and not out.is_dir():
        raise UserError(f"Expected --out to be a folder, but '{out}' is a file.")
    check_distinct(study.runs)
    results = Results(results_folder, out, study.after)
    chosen = _choose_runs(study, options.only)
    unfinished = [run for run in chosen if not results.finished(run)]

    if options.list:
        for run in chosen:
            state = describe_state(run) if run in unfinished else "finished"
            print(f"{run.name}: {state}")
        print(f"{len(chosen) - len(unfinished)} of {len(chosen)} runs are finished.")
        return

    failed: list[str] = []
    if unfinished and not options.report:
        for run in unfinished:
            record_of(run)  # Refuse a folder with another run before anything is trained.
        try:
            failed = train(study, unfinished)
        except KeyboardInterrupt:
            command = shlex.join(["python", "-m", "lightning_cgrpo", "study", *arguments])
            print(f"Stopped. Runs go on from their last checkpoints with the same command: {command}", file=sys.stderr)
            raise

    # The report has all finished runs of the study, whichever were chosen.
    finished = [run for run in study.runs if results.finished(run)]
    missing = [run for run in study.runs if run not in finished]
    if finished:
        report_runs(finished, missing, results, out)
    failures = f", {len(failed)} failed" if failed else ""
    print(f"{len(finished)} of {len(study.runs)} runs are finished{failures}.")
    for error in failed:
        print(error, file=sys.stderr)
    if failed or not finished:
        sys.exit(1)


def _choose_runs(study: Study, only: str) -> list[Run]:
    """The runs that --only names; all runs for ""."""
    chosen = []
    for run in study.runs:
        # A whole seed, because seed=1 is also a part of seed=10.
        if only in (run.name, f"seed={run.seed}") or only in run.variant:
            chosen.append(run)
    if not chosen:
        raise UserError(
            f"Expected --only to be the name of a run (see --list), a part of its variant's, or seed=N, but got "
            f"'{only}'."
        )
    return chosen


def train(study: Study, runs: Sequence[Run]) -> list[str]:
    """Train runs, and return a line per failed run."""
    from lightning_cgrpo.cli.study.execution import OUTPUT, train_here

    # The cores that this process may use, where the system tells them.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    outcomes = train_here(runs, study.after, study.at_once or cores)
    failed: list[str] = []
    with print_progress(runs), contextlib.closing(outcomes):
        for run, error in outcomes:
            if error is None:
                print(f"{run.name}: finished", flush=True)
                continue
            failed.append(f"{run.name} failed: {error} (all output: {run.folder / OUTPUT})")
            print(failed[-1], flush=True)
    return failed


@contextlib.contextmanager
def print_progress(runs: Sequence[Run]) -> Iterator[None]:
    """Print the updates of all runs every minute."""
    before = sum(progress(run)[0] for run in runs)  # updates of earlier sittings
    began = time.monotonic()
    over = threading.Event()

    def print_lines() -> None:
        while not over.wait(60):
            print(progress_line(runs, before, time.monotonic() - began), flush=True)

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def progress_line(runs: Sequence[Run], before: int, seconds: float) -> str:
    """Updates done and asked of all runs, and the time left at the pace since `before` updates were done."""
    done = 0
    lengths = []
    for run in runs:
        updates, asked = progress(run)
        done += updates
        if asked:
            lengths.append(asked)
    minutes = seconds / 60
    if not lengths:
        return f"{done:,} updates, {minutes:.0f} min"
    # Runs that have not begun are as long as the longest other run.
    total = sum(lengths) + (len(runs) - len(lengths)) * max(lengths)
    line = f"{done:,} of {total:,} updates, {minutes:.0f} min"
    if done > before:
        line += f", {minutes * (total - done) / (done - before):.0f} min left"
    return line


def report_runs(runs: Sequence[Run], unfinished: Sequence[Run], results: Results, out: Path) -> None:
    """Write finished runs' report, which names the others, and save the runs that have logs here."""
    from lightning_cgrpo.cli.report.command import write_report
    from lightning_cgrpo.cli.report.tables import plain
    from lightning_cgrpo.cli.study.comparison import sections

    methods: dict[str, MethodRuns] = {}
    for run in runs:
        run_results = results.read(run)
        methods.setdefault(run.variant, MethodRuns(run.variant, [])).runs.append(run_results)
        # A renamed variant's file takes the new name, because the run of another variant may replace the old file.
        file = out / "runs" / f"{run.variant}_seed{run.seed}.json"
        saved = results.files.get(identity(run), file)
        if results.in_folder(run) or (saved != file and saved.parent == file.parent):
            save_run(run_results, file)
    more = sections(list(methods.values()))
    if unfinished:
        missing = ", ".join(plain(run.name) for run in unfinished)
        more = [f"## What is missing\n\nRuns that are not finished (`study --list` says why): {missing}.\n", *more]
    write_report(list(methods.values()), out, more)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo study",
        description="Train variants of a configuration with several seeds, compare and report them. A finished run is "
        "known by its configuration, starting weights and seed, and is not trained again. See docs/studies.md.",
        allow_abbrev=False,
    )
    parser.add_argument("study", metavar="STUDY.yaml", help="base, variants, overrides, seeds, after, at_once")
    parser.add_argument("--list", action="store_true", help="only name the runs and their state")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="train runs whose variant's name contains this, or seed=N"
    )
    parser.add_argument("--report", action="store_true", help="train nothing, report what is finished")
    parser.add_argument(
        "--results", metavar="DIR", type=Path, help="reports of all sittings, with their runs (default: runs/STUDY)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write the report (default: RESULTS/report)")
    return parser
