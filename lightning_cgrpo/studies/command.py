"""``python -m lightning_cgrpo study``: train unfinished runs, and report finished runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.studies.display import Display, failure
from lightning_cgrpo.studies.ledger import Ledger, begun, state
from lightning_cgrpo.studies.study import Run, Study, read_study


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: if the study, a run or an argument is wrong.
        SystemExit: with status 1, if a run failed.
    """
    arguments = list(sys.argv[2:] if argv is None else argv)
    given = _parser().parse_args(arguments)
    study = read_study(given.study)
    results = given.results or study.logs
    out = given.out or results / "report"
    if out.exists() and not out.is_dir():
        raise UserError(f"Expected --out to be a folder, but '{out}' is a file.")
    ledger = Ledger(results, out)
    ledger.check(study.runs)
    chosen = [run for run in study.runs if given.only in run.name]
    if not chosen:
        raise UserError(f"Expected --only to be a part of a run's name (see --list), but got '{given.only}'.")
    todo = [run for run in chosen if not ledger.finished(run)]
    if given.list:
        for run in chosen:
            print(f"{run.name}: {'finished' if run not in todo else state(run)}")
        print(f"{len(chosen) - len(todo)} of {len(chosen)} runs are finished.")
        return
    failed: list[str] = []
    if todo and not given.report:
        for run in todo:
            begun(run)  # A folder with another run is told before anything is trained.
        study.logs.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(study.logs / ".lock", timeout=0):
                failed = train(study, todo, given.at_once, given.slurm)
        except Timeout:
            raise UserError(
                f"Expected one training at a time in {study.logs}, but another process trains there, try --list."
            ) from None
        except KeyboardInterrupt:
            command = shlex.join(["python", "-m", "lightning_cgrpo", "study", *arguments])
            print(f"Stopped. Runs go on from their last checkpoints with the same command: {command}", file=sys.stderr)
            raise
    finished = [run for run in study.runs if ledger.finished(run)]
    if finished:
        from lightning_cgrpo.studies.page import write_report

        write_report(finished, ledger, out)
        ledger.write(finished)
    print(f"{len(finished)} of {len(study.runs)} runs are finished{f', {len(failed)} failed' if failed else ''}.")
    for error in failed:
        print(error, file=sys.stderr)
    if failed or not finished:
        sys.exit(1)


def train(study: Study, runs: Sequence[Run], at_once: int | None, slurm: str | None) -> list[str]:
    """Train runs, and return a line per failed run.

    Args:
        at_once: overrides the study's parallel runs.
        slurm: settings of SLURM jobs; None trains here.
    """
    from lightning_cgrpo.studies.execution import Outcome, here, on_cluster

    most = at_once or study.at_once
    outcomes: Generator[Outcome, None, None]
    if slurm is None:
        outcomes = here(runs, study.after, most or _cores())
    else:
        outcomes = on_cluster(runs, study.after, most, slurm)
    failed: list[str] = []
    with Display(runs, Console()) as display, contextlib.closing(outcomes):
        for run, error in outcomes:
            display.end(run, error)
            if error is not None:
                failed.append(failure(run, error))
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo study",
        description="Train variants of a configuration with several seeds, compare and report them. A finished run is "
        "known by its configuration, starting weights and seed, and is not trained again. See docs/studies.md.",
        allow_abbrev=False,
    )
    parser.add_argument("study", metavar="STUDY.yaml", help="base, variants, overrides, seeds, after, at_once")
    parser.add_argument("--list", action="store_true", help="only name the runs and their state")
    parser.add_argument("--only", metavar="TEXT", default="", help="train runs whose name contains this")
    parser.add_argument("--report", action="store_true", help="train nothing, report what is finished")
    parser.add_argument("--at_once", metavar="N", type=_positive, help="runs at a time (default: one per core)")
    parser.add_argument(
        "--slurm", metavar="KEY=VALUE,…", help="train in jobs of SLURM, such as partition=gpu,time=60 (extra slurm)"
    )
    parser.add_argument(
        "--results", metavar="DIR", type=Path, help="ledger and report of all sittings (default: runs/STUDY)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write the report (default: RESULTS/report)")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"Expected a positive number, but got '{text}'.")
    return int(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
