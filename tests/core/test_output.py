"""Tables keep their columns on narrow screens, messages their words, and files are whole."""

import pytest
from rich.table import Column, Table

from lightning_cgrpo.core.output import print_table, wrapped, write_whole


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
    lines = wrapped(f"short\n{text}\n").splitlines(keepends=True)
    assert lines[0] == "short\n" and f"  {path}\n" in lines
    assert all(len(line.rstrip()) <= columns for line in lines if path not in line)
    assert " ".join("".join(lines[1:]).split()) == text


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    for text in ("first", "second"):
        write_whole(path := tmp_path / "file.json", text)
        assert path.read_text() == text and list(tmp_path.iterdir()) == [path]
