"""Outputs that can't show every letter, or that nobody reads."""

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from lightning_cgrpo import __main__ as entry
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.core.user_code import UserCode


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_letter_that_the_output_lacks_is_a_question_mark(encoding, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(entry, "main", lambda arguments: print("λ 0.4"))
    entry.run()
    sys.stdout.flush()
    assert written.getvalue() == b"? 0.4\n"


PRINTS = {
    "print": "print('x', flush=True)",
    "rich": "rich.get_console().print('x')",
    "rich in a callback": "boundary(lambda: rich.get_console().print('x'))()",
}
PROCESS = """\
import os, sys
import rich
from lightning_cgrpo import __main__ as entry
from lightning_cgrpo.core.user_code import UserCode
boundary = UserCode("a callback")
for printed in sys.argv[1:]:
    child = os.fork()
    if not child:
        entry.main = lambda arguments: exec(printed)
        sys.exit(entry.run())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_closed_pipe_ends_the_program_without_a_word():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", PROCESS, *PRINTS.values()], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.stderr.decode().split("\n") == ["141"] * len(PRINTS) + [""]


def test_another_broken_pipe_is_an_error(monkeypatch, capsys):
    def breaks(arguments):
        with UserCode("a function"):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(entry, "main", breaks)
    monkeypatch.setattr(entry, "output_is_closed", lambda: False)
    with pytest.raises(SystemExit) as ended:
        entry.run()
    assert ended.value.code != 141 and "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_table_cuts_no_word(width, capsys, monkeypatch):
    """A verdict that is cut can't be read; lines wrap instead."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("rich._console", None)
    columns = ["threshold", "measured", "true value", "verdict", "prompts that would decide"]
    rows = [["explained(subject=algebra)", "at least 0.8765", "undecided", "certified", "12,345,678,901"]] * 2
    table = Table(*columns, title="Certificate")
    for row in rows:
        table.add_row(*row)
    print_table(table)
    printed = capsys.readouterr().out
    words = {word for row in [columns, *rows] for text in row for word in text.split()}
    assert all(word in printed for word in words) and "\u2026" not in printed
