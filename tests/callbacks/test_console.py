"""A run in a terminal, counted in rows: the bar is one row, and nothing that is printed beside it is erased."""

import fcntl
import os
import pty
import re
import struct
import termios
import time
import warnings
from pathlib import Path

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_info
from rich.table import Table

from lightning_cgrpo.callbacks import InitialRates, ObjectiveProgressBar, progress
from lightning_cgrpo.cli.preparation import quiet_lightning
from lightning_cgrpo.core.output import print_table
from tests.callbacks.small_runs import trained
from tests.forked import forked

UPDATES = 6
CODES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(.)", re.DOTALL)


class Speak(Callback):
    """Prints in every way that callbacks and libraries print."""

    def on_train_batch_end(self, trainer, *_):
        update = trainer.global_step
        table = Table("name", title=f"table {update}")
        table.add_row("[b]row[/b]")
        print_table(table)
        print(f"printed {update}")
        rank_zero_info(f"logged {update}")
        warnings.warn(f"warned {update}", stacklevel=1)


def run():
    quiet_lightning()
    trained(
        InitialRates(), ObjectiveProgressBar(every_n_updates=2), Speak(), max_steps=UPDATES, enable_progress_bar=True
    )


def screen(data: bytes, columns: int) -> list[str]:
    """The rows that a terminal shows, with those that were scrolled away."""
    rows, row, column = [[]], 0, 0
    for code in CODES.finditer(data.decode()):
        number, letter, character = code.groups()
        if letter == "A":
            row = max(row - int(number or 1), 0)
        elif letter == "K":
            rows[row] = rows[row][:column] if number in ("", "0") else []
        elif character == "\r":
            column = 0
        elif character is not None:
            if character == "\n" or column == columns:
                row, column = row + 1, 0
                rows.extend([] for _ in range(row + 1 - len(rows)))
            if character != "\n":
                rows[row] += " " * (column + 1 - len(rows[row]))
                rows[row][column] = character
                column += 1
    return ["".join(cells).rstrip() for cells in rows]


@pytest.fixture(scope="module", params=[80, pytest.param(160, marks=pytest.mark.slow)])
def shown(request, tmp_path_factory):
    columns, data = request.param, b""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("terminal"))
        master, slave = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        with forked(run, output=Path(os.ttyname(slave)), environment={"TERM": "xterm"}) as process:
            os.set_blocking(master, False)
            ended = False
            while not ended:
                ended = process.exitcode is not None
                time.sleep(0.02)
                try:
                    data += os.read(master, 1 << 16)
                except BlockingIOError:
                    continue
        os.close(slave)
        os.close(master)
        assert process.exitcode == 0, data.decode()
    return columns, screen(data, columns)


def test_the_bar_is_one_row(shown):
    columns, rows = shown
    bars = [row for row in rows if "━━" in row and "/6 " in row]
    assert len(bars) == 1
    assert f"{UPDATES}/{UPDATES}" in bars[0] and re.search(r"[01]/1 met, \w+ lava 0[\d.]* [<>]=? 0.01, reward", bars[0])
    assert max(map(len, rows)) <= columns
    assert rows.index(bars[0]) == len(rows) - 1 - [row != "" for row in reversed(rows)].index(True), "the last row"


def test_nothing_is_erased(shown):
    _, rows = shown
    text = [row.strip() for row in rows]
    for update in range(1, UPDATES + 1):
        for word in ("printed", "logged", "Warning: warned", "table"):
            assert text.count(f"{word} {update}") == 1, (word, update)
    assert sum("[b]row[/b]" in row or row == "│ row  │" for row in text) == UPDATES
    # A line and two rows, lava and the reward, every second update.
    heads = [number for number, row in enumerate(text) if row.startswith("Update ")]
    assert [text[number][:11] for number in heads] == ["Update 2 of", "Update 4 of", "Update 6 of"]
    for number in heads:
        assert text[number + 1].startswith("lava    <= 0.01") and "λ" in text[number + 1]
        assert text[number + 2].startswith("reward")


def test_no_advertisements_and_no_paths(shown):
    text = "\n".join(shown[1])
    assert not re.search(r"Tip|FLOPs|eval mode|available|site-packages|\.py:", text)
    assert "Before training" in text


def test_a_file_gets_a_line_after_each_silence(folder, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    trained(ObjectiveProgressBar(every_n_updates=5), max_steps=UPDATES, enable_progress_bar=True)
    out = capsys.readouterr().out
    lines = out.splitlines()
    updates = [line for line in lines if line.startswith("Update ")]
    assert [int(line.split()[1]) for line in updates] == list(range(1, UPDATES + 1))
    assert all("/1 met, " in line and "reward " in line for line in updates)
    assert "Validation: batch 1" in lines and "\x1b" not in out and "━" not in out
    assert out.count("λ") == 2  # the table after update 5
