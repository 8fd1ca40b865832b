"""Tables keep their columns on narrow screens, messages their words; files are whole, and paths as in a shell."""

import logging
from pathlib import Path

import pytest
from rich.table import Column, Table

from lightning_cgrpo.core.output import _says_something, print_table, wrap_lines, write_whole
from lightning_cgrpo.core.paths import expand_path


def test_columns_keep_their_ends_on_a_narrow_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    heads = [f"measure_{number}" for number in range(6)]
    table = Table(*(Column(head, no_wrap=True, min_width=len(head)) for head in heads))
    table.add_row(*(f"{number}.123456" for number in range(6)))
    print_table(table)
    shown = capsys.readouterr().out
    assert all(head in shown for head in heads) and "5.123456" in shown


@pytest.mark.parametrize("columns", [80, 120])
def test_messages_are_no_wider_than_the_screen_and_words_stay_whole(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    path = "/a/path/that_stays" + 13 * "/whole-and-wide"
    words = [f"constraint_{number} >= 0.99 (299 needed)," for number in range(6)] + [path, "is the path."]
    text = " ".join(words)
    lines = wrap_lines(f"short\n{text}\n").splitlines(keepends=True)
    assert lines[0] == "short\n" and f"  {path}\n" in lines
    assert all(len(line.rstrip()) <= columns for line in lines if path not in line)
    assert " ".join("".join(lines[1:]).split()) == text


@pytest.mark.parametrize(
    ("message", "informs"),
    [
        ("Restoring states from the checkpoint path at runs/.mine/version_0/checkpoints/step=150.ckpt", True),
        ("Restoring states from the checkpoint path at runs/mine/version_0/checkpoints/.step=150.31540.ckpt", False),
        ("Loaded model weights from the checkpoint at runs/mine/version_0/checkpoints/.step=150.31540.ckpt", False),
        ("Seed set to 3", False),
    ],
)
def test_messages_that_say_nothing_about_the_run(message, informs):
    assert _says_something(logging.LogRecord("lightning.pytorch", logging.INFO, "", 0, message, None, None)) == informs


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    for text in ("first", "second"):
        write_whole(path := tmp_path / "file.json", text)
        assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_paths_are_expanded_as_in_a_shell(monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("NOWHERE", raising=False)
    assert expand_path("$DATA/a.jsonl") == expand_path("${DATA}/a.jsonl") == Path("/data/a.jsonl")
    assert expand_path("~/a.jsonl") == expand_path(Path("~/a.jsonl")) == Path("/home/ann/a.jsonl")
    assert expand_path("$NOWHERE/a$") == Path("$NOWHERE/a$")
