"""The command ``report``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.cli.report.methods import MethodRuns, collect
from lightning_cgrpo.cli.report.page import html_page, report_page
from lightning_cgrpo.cli.report.results import final_table, test_table
from lightning_cgrpo.core.errors import UserError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: if no run is found, or writing fails.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo report",
        description="Draw figures and tables of runs, finished or running; runs with the same settings are seeds of "
        "one method. See docs/reporting.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        metavar="[NAME=]RUN_DIR",
        nargs="+",
        help="a run's folder, a folder of runs, or runs that a study saved; NAME is what to call what is found there",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="where to write the report")
    options = parser.parse_args(argv)
    tasks = collect([_split_name(argument) for argument in options.runs])
    for task, methods in tasks.items():
        folder = options.out / task if len(tasks) > 1 else options.out
        write_report(methods, folder)


def write_report(methods: Sequence[MethodRuns], folder: Path, more: Sequence[str] = ()) -> None:
    """Write ``report.md``, followed by `more` sections, the figures, and both as ``report.html``.

    Raises:
        UserError: if writing fails.
    """
    from lightning_cgrpo.cli.report.figures import draw_all

    tables = [table for table in (final_table(methods), test_table(methods)) if table is not None]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page = "\n".join([report_page(methods, tables), *more])
        (folder / "report.md").write_text(page, encoding="utf-8")
        pictures = draw_all(methods, folder)
        (folder / "report.html").write_text(html_page(methods, tables, pictures), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"Expected --out to be a folder for the report, but got '{folder}' ({error.strerror or error})."
        ) from error
    print(f"Wrote {folder / 'report.html'}, and its tables as report.md.")


def _split_name(argument: str) -> tuple[str | None, Path]:
    """Split ``NAME=PATH``; the name is None without "=", or if the argument is an existing path."""
    name, _, path = argument.partition("=")
    if not name or not path or Path(argument).exists():
        return None, Path(argument)
    return name, Path(path)
