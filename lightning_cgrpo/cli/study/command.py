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
from lightning_cgrpo.cli.study.state import Results, check_distinct, identity, progress, record_of, state
from lightning_cgrpo.cli.study.study import Run, Study, read_study
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.run.runs import save


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: if the study, a run or an argument is wrong.
        SystemExit: with status 1, if a run failed.
    """
    arguments = list(sys.argv[2:] if argv is None else argv)
    given = _parser().parse_args(arguments)
    study = read_study(given.study)
    out = given.out or (given.results or study.logs) / "report"
    if out.exists() and not out.is_dir():
        raise UserError(f"Expected --out to be a folder, but '{out}' is a file.")
    check_distinct(study.runs)
    results = Results(given.results or study.logs, out, study.after)
    # A whole seed, because seed=1 is also a part of seed=10.
    chosen = [run for run in study.runs if given.only in (run.name, f"seed={run.seed}") or given.only in run.variant]
    if not chosen:
        raise UserError(
            f"Expected --only to be the name of a run (see --list), a part of its variant's, or seed=N, but got "
            f"'{given.only}'."
        )
    todo = [run for run in chosen if not results.finished(run)]
    if given.list:
        for run in chosen:
            print(f"{run.name}: {'finished' if run not in todo else state(run)}")
        print(f"{len(chosen) - len(todo)} of {len(chosen)} runs are finished.")
        return
    failed: list[str] = []
    if todo and not given.report:
        for run in todo:
            record_of(run)  # A folder with another run is told before anything is trained.
        try:
            failed = train(study, todo)
        except KeyboardInterrupt:
            command = shlex.join(["python", "-m", "lightning_cgrpo", "study", *arguments])
            print(f"Stopped. Runs go on from their last checkpoints with the same command: {command}", file=sys.stderr)
            raise
    finished = [run for run in study.runs if results.finished(run)]
    if finished:
        report(finished, [run for run in study.runs if run not in finished], results, out)
    print(f"{len(finished)} of {len(study.runs)} runs are finished{f', {len(failed)} failed' if failed else ''}.")
    for error in failed:
        print(error, file=sys.stderr)
    if failed or not finished:
        sys.exit(1)


def train(study: Study, runs: Sequence[Run]) -> list[str]:
    """Train runs, and return a line per failed run."""
    from lightning_cgrpo.cli.study.execution import OUTPUT, here

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    outcomes = here(runs, study.after, study.at_once or cores)
    failed: list[str] = []
    with telling(runs), contextlib.closing(outcomes):
        for run, error in outcomes:
            if error is not None:
                failed.append(f"{run.name} failed: {error} (all output: {run.folder / OUTPUT})")
            print(f"{run.name}: finished" if error is None else failed[-1], flush=True)
    return failed


@contextlib.contextmanager
def telling(runs: Sequence[Run]) -> Iterator[None]:
    """Print the updates of all runs every minute."""
    before, began, over = sum(progress(run)[0] for run in runs), time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(60):
            print(progress_line(runs, before, time.monotonic() - began), flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def progress_line(runs: Sequence[Run], before: int, seconds: float) -> str:
    """Updates done and asked of all runs, and the time left at the pace since `before` updates were done."""
    counts = [progress(run) for run in runs]
    done, lengths = sum(updates for updates, _ in counts), [asked for _, asked in counts if asked]
    if not lengths:
        return f"{done:,} updates, {seconds / 60:.0f} min"
    # Runs that have not begun are as long as the longest other run.
    asked = sum(lengths) + (len(runs) - len(lengths)) * max(lengths)
    left = f", {seconds / 60 * (asked - done) / (done - before):.0f} min left" if done > before else ""
    return f"{done:,} of {asked:,} updates, {seconds / 60:.0f} min{left}"


def report(runs: Sequence[Run], unfinished: Sequence[Run], results: Results, out: Path) -> None:
    """Write finished runs' report, which names the others, and save the runs that have logs here."""
    from lightning_cgrpo.cli.report.command import write
    from lightning_cgrpo.cli.report.tables import plain
    from lightning_cgrpo.cli.study.comparison import sections

    methods: dict[str, MethodRuns] = {}
    for run in runs:
        read, file = results.read(run), out / "runs" / f"{run.variant}_seed{run.seed}.json"
        methods.setdefault(run.variant, MethodRuns(run.variant, [])).runs.append(read)
        # A renamed variant's file takes the new name, because the run of another variant may replace the old file.
        saved = results.files.get(identity(run), file)
        if results.in_folder(run) or (saved != file and saved.parent == file.parent):
            save(read, file)
    more = sections(list(methods.values()))
    if unfinished:
        missing = ", ".join(plain(run.name) for run in unfinished)
        more = [f"## What is missing\n\nRuns that are not finished (`study --list` says why): {missing}.\n", *more]
    write(list(methods.values()), out, more)


def _parser() -> argparse.ArgumentParser:
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
