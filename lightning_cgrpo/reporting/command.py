"""``python -m lightning_cgrpo report``: figures and tables of runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.reporting import saved
from lightning_cgrpo.reporting.collect import Collection, collect
from lightning_cgrpo.reporting.control import control_table
from lightning_cgrpo.reporting.notes import missing_notes
from lightning_cgrpo.reporting.page import page
from lightning_cgrpo.reporting.results import final_table, test_table
from lightning_cgrpo.reporting.runs import LAST, progress
from lightning_cgrpo.reporting.tables import Table, comma_separated, latex, markdown


def main(argv: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: if there is nothing to report, or it can't be written.
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
    """Write figures, tables, saved runs and the page about them, and show a summary."""
    from lightning_cgrpo.reporting.figures import draw_all

    folder.mkdir(parents=True, exist_ok=True)
    methods = collection.methods
    tables = [final_table(methods, last), control_table(methods)]
    tested = test_table(methods)
    if tested is not None:
        tables.append(tested)
    for table in tables:
        for suffix, render in (("md", markdown), ("csv", comma_separated), ("tex", latex)):
            (folder / f"{table.name}.{suffix}").write_text(render(table), encoding="utf-8")
    labeled = [(method.label, run) for method in methods for run in method.runs]
    saved.write_all(labeled, last, folder / "runs")
    pictures = draw_all(methods, folder)
    missing = missing_notes(methods)
    (folder / "report.md").write_text(page(collection, tables, pictures, missing), encoding="utf-8")
    _show(collection, tables[0], [*collection.notes, *missing], folder)


def _source(argument: str) -> tuple[str | None, Path]:
    """A path, or a name and a path; a path that exists is one, whatever signs are in it."""
    name, equals, path = argument.partition("=")
    if not equals or not name or not path or Path(argument).exists():
        return None, Path(argument)
    return name, Path(path)


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


def _show(collection: Collection, table: Table, notes: Sequence[str], folder: Path) -> None:
    """A short summary on the screen: means only, the tables have the rest."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Screen

    console = Console()
    shown = [n for n, column in enumerate(table.columns) if column.title.startswith(("reward", "rate"))]
    screen = Screen(box=SIMPLE)
    longest = max(len(word) for method in collection.methods for word in method.label.split())
    screen.add_column("method", min_width=longest, overflow="fold")
    heads = [table.columns[n].title.removeprefix("rate ") for n in shown]
    for head in ("seeds", "updates", *heads):
        # Narrow: a bound is below its name.
        screen.add_column(escape(head.replace(" ", "\n", 1)), justify="right", no_wrap=True)
    for method, (_, seeds, cells) in zip(collection.methods, table.rows, strict=True):
        texts = []
        for n in shown:
            value = cells[n].value
            digits = table.columns[n].decimals
            text = "-" if value is None else f"{value.mean:.{digits}f}"
            text += " !" if cells[n].marked else ""
            texts.append(f"[bold]{text}[/]" if cells[n].bold else text)
        screen.add_row(escape(method.label), str(seeds), progress(method.runs), *texts)
    # Rather lines that the terminal breaks than columns without their ends.
    needed = console.measure(screen, options=console.options.update(width=1000)).minimum
    Console(width=max(console.width, needed)).print(screen)
    for note in notes:
        console.print(f"- {note}", markup=False, highlight=False)
    console.print(f"Wrote {folder / 'report.md'}, with figures, tables and runs beside it.", markup=False)
