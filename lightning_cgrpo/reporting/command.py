"""The command ``report``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.output import print_table
from lightning_cgrpo.reporting import saved_runs
from lightning_cgrpo.reporting.collect import Collection, TaskRuns, collect
from lightning_cgrpo.reporting.control import control_table
from lightning_cgrpo.reporting.labels import slug
from lightning_cgrpo.reporting.page import Section, figures_page, page
from lightning_cgrpo.reporting.results import final_table, test_table
from lightning_cgrpo.reporting.runs import LAST, MethodRuns, progress
from lightning_cgrpo.reporting.tables import Cell, Column, Table, comma_separated, latex, markdown


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Raises:
        UserError: if no run is found, or writing fails.
    """
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo report",
        description="Draw figures and tables of runs, finished or running: seeds and methods are told apart by the "
        "configurations beside the logs. See docs/reporting.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        metavar="[NAME=]RUN_DIR",
        nargs="+",
        help="a run's folder, a folder of runs, or runs that a report saved; NAME is what to call what is found there",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="where to write the report")
    parser.add_argument(
        "--last",
        metavar="FRACTION",
        type=_fraction,
        default=LAST,
        help="final values are means over this last part of the updates (default: 1/8)",
    )
    given = parser.parse_args(argv)
    if given.out.exists() and not given.out.is_dir():
        raise UserError(f"Expected --out to be a folder, but '{given.out}' is a file.")
    collection = collect([_source(argument) for argument in given.runs], given.last, _track)
    try:
        write(collection, given.last, given.out)
    except OSError as error:
        raise UserError(f"The report can't be written to '{given.out}': {error.strerror or error}.") from error


def write(collection: Collection, last: float, folder: Path) -> None:
    """Write the whole report, and print a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    several = len(collection.tasks) > 1
    labeled = [
        (f"{task.name} {method.label}" if several else method.label, run)
        for task in collection.tasks
        for method in task.methods
        for run in method.runs
    ]
    saved_runs.write_all(labeled, last, folder / "runs")
    sections = [_section(task, f"{slug(task.name)}_" if several else "", last, folder) for task in collection.tasks]
    (folder / "report.md").write_text(page(sections, collection.notes), encoding="utf-8")
    (folder / "figures.md").write_text(figures_page(sections), encoding="utf-8")
    _show(sections, collection.notes, folder)


def _section(task: TaskRuns, prefix: str, last: float, folder: Path) -> Section:
    from lightning_cgrpo.reporting.figures import draw_all

    methods = task.methods
    found = (final_table(methods, last), control_table(methods), test_table(methods))
    tables = [table for table in found if table is not None]
    for table in tables:
        named = replace(table, name=f"{prefix}{table.name}")
        for suffix, render in (("md", markdown), ("csv", comma_separated), ("tex", latex)):
            (folder / f"{named.name}.{suffix}").write_text(render(named), encoding="utf-8")
    return Section(task, prefix, tables, draw_all(methods, folder, prefix))


def _source(argument: str) -> tuple[str | None, Path]:
    """Split ``NAME=PATH``; the name is None without "=", or if the argument is an existing path."""
    name, _, path = argument.partition("=")
    return (None, Path(argument)) if not name or not path or Path(argument).exists() else (name, Path(path))


def _fraction(text: str) -> float:
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"Expected a fraction in (0, 1], such as 1/8 or 0.1, but got '{text}'.")
    return value


def _track(files: Sequence[Path]) -> Iterable[Path]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(files, "Reading logs", console=console, transient=True, disable=not console.is_terminal)


def _show(sections: Sequence[Section], notes: Sequence[str], folder: Path) -> None:
    from rich.console import Console

    console = Console()
    for section in sections:
        if len(sections) > 1:
            console.print(section.task.name, style="bold", markup=False)
        _show_table(section.task.methods, section.tables[0])
        for note in section.task.notes:
            console.print(f"- {note}", markup=False, highlight=False)
    for note in notes:
        console.print(f"- {note}", markup=False, highlight=False)
    console.print(f"Wrote {folder / 'report.md'}, with figures, tables and runs beside it.", markup=False)


def _show_table(methods: Sequence[MethodRuns], table: Table) -> None:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table as Screen

    shown = [n for n, column in enumerate(table.columns) if column.title.startswith(("reward", "rate", "mean"))]
    screen = Screen(box=SIMPLE)
    screen.add_column("method", min_width=_longest(word for method in methods for word in method.label.split()))
    # A bound stands below its name, to save width.
    heads = [table.columns[n].title.removeprefix("rate ").replace(" ", "\n", 1) for n in shown]
    rows = [
        [str(seeds), progress(method.runs), *(_mean(cells[n], table.columns[n]) for n in shown)]
        for method, (_, seeds, cells) in zip(methods, table.rows, strict=True)
    ]
    for head, column in zip(("seeds", "updates", *heads), zip(*rows, strict=True), strict=True):
        # Rich takes the longest word for the least width, and would cut marks off.
        width = _longest([*head.split("\n"), *column])
        screen.add_column(escape(head), justify="right", no_wrap=True, min_width=width)
    for method, row, (_, _, cells) in zip(methods, rows, table.rows, strict=True):
        bold = [False, False, *(cells[n].bold for n in shown)]
        screen.add_row(escape(method.label), *(f"[bold]{t}[/]" if b else t for t, b in zip(row, bold, strict=True)))
    print_table(screen)


def _mean(cell: Cell, column: Column) -> str:
    mean = "-" if cell.value is None else f"{cell.value.mean:.{column.decimals}f}"
    return mean + (" !" if cell.marked else "")


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts))
