"""Tables keep their columns on narrow screens, and files are whole."""

from rich.table import Column, Table

from lightning_cgrpo.core.output import print_table, write_whole


def test_columns_keep_their_ends_on_a_narrow_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    heads = [f"measure_{number}" for number in range(6)]
    table = Table(*(Column(head, no_wrap=True, min_width=len(head)) for head in heads))
    table.add_row(*(f"{number}.123456" for number in range(6)))
    print_table(table)
    shown = capsys.readouterr().out
    assert all(head in shown for head in heads) and "5.123456" in shown


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    for text in ("first", "second"):
        write_whole(path := tmp_path / "file.json", text)
        assert path.read_text() == text and list(tmp_path.iterdir()) == [path]
