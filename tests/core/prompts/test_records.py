import json
import sys
import types

import pyarrow
import pytest
from pyarrow import parquet

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.prompts.records import DEEPEST, RecordError, read_records, records_in_memory

ROWS = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "2 + 2?", "answer": "#### 4"}]


def write_jsonl(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path, rows=ROWS):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(("write", "name"), [(write_jsonl, "train.jsonl"), (write_parquet, "train.parquet")])
def test_a_file_and_a_folder_with_it_give_the_same_records(tmp_path, write, name):
    file = write(tmp_path / name)
    records = read_records(file, split="whatever")
    assert [record.values for record in records] == ROWS
    assert records == read_records(tmp_path, split="train")
    assert records == read_records(str(tmp_path), split="train")


def test_shards_of_a_split_are_read_in_order(tmp_path):
    write_parquet(tmp_path / "train-00001-of-00002.parquet", ROWS[1:])
    write_parquet(tmp_path / "train-00000-of-00002.parquet", ROWS[:1])
    write_parquet(tmp_path / "test-00000-of-00001.parquet")
    assert [record.values for record in read_records(tmp_path)] == ROWS


def test_lines_are_counted_as_an_editor_does(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": "x"}\r\n\n   \n{"a": "y"}')  # as editors on Windows save it
    assert [record.where for record in read_records(file)] == [f"{file}:1", f"{file}:4"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a": "x"', "a JSON object"),
        (b"[" * 100_000, "a JSON object"),
        (b'{"a": "x", "b": {"c": 1, "c": 2}}', "the key 'c' twice"),
        (b'{"a": "\xff"}', "byte 0xff at offset 7"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path, line, problem):
    file = tmp_path / "train.jsonl"
    file.write_bytes(b'{"a": "x"}\n' + line + b"\n")
    with pytest.raises(RecordError) as error:
        read_records(file)
    assert str(error.value).startswith(f"{file}:2: ") and problem in str(error.value)


@pytest.mark.parametrize(
    ("values", "problem"),
    [({"question": "x"}, "got question"), ({"answer": ["x"]}, "list"), ({"answer": "a\ud800"}, r"'\ud800'")],
)
def test_a_field_that_is_no_text_is_named(tmp_path, values, problem):
    file = write_jsonl(tmp_path / "train.jsonl", [{"answer": "fine"}, values])
    first, second = read_records(file)
    assert first.text("answer") == "fine"
    with pytest.raises(RecordError) as error:
        second.text("answer")
    assert str(error.value).startswith(f"{file}:2: ") and problem in str(error.value)


def test_a_parquet_text_that_is_not_utf8_is_named(tmp_path):
    file = tmp_path / "train.parquet"
    texts = pyarrow.Array.from_buffers(
        pyarrow.string(),
        3,
        [None, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pyarrow.py_buffer(b"a\xffc")],
    )
    parquet.write_table(pyarrow.table({"answer": texts}), file)
    with pytest.raises(RecordError, match=r"train\.parquet to hold texts in UTF-8"):
        read_records(file)


@pytest.mark.parametrize(
    ("name", "content", "asked", "words"),
    [
        ("train.jsonl", "", "train.jsonl", r"train\.jsonl"),
        ("train.parquet", "", "train.parquet", r"train\.parquet"),
        ("prompts.jsonl", '{"prompt": "a"}', "promts.jsonl", r"promts\.jsonl, but .* Did you mean 'prompts\.jsonl'\?"),
        ("train.jsonl", '{"a": "x"}', "nowhere/train.jsonl", "there is none"),
        ("train.jsonl", '{"a": "x"}', "none", "Expected a file or a folder at .*none"),
        ("dataset_info.json", "{}", "", r"`save_to_disk` wrote, try dataset\.to_parquet\('train\.parquet'\)"),
    ],
)
def test_what_holds_no_records_is_named_and_a_misspelled_file_is_guessed(tmp_path, name, content, asked, words):
    (tmp_path / name).write_text(content)
    (tmp_path / "other.csv").write_text("a\nx\n")
    with pytest.raises(RecordError, match=words):
        read_records(tmp_path / asked)


def test_a_name_is_loaded_by_the_datasets_library(folder, monkeypatch):
    def load_dataset(name, subset, split):
        if split != "test":
            raise ConnectionError("no network")
        assert (name, subset) == ("openai/gsm8k", "main")
        return ROWS

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("lightning_cgrpo.core.prompts.records.hub_answers", lambda: True)
    records = read_records("openai/gsm8k", "test", "main")
    assert [record.values for record in records] == ROWS
    assert records[1].where == "openai/gsm8k [test], row 2"
    words = "'openai/gsm8k' to be a file, .* split 'train' gave ConnectionError: no net"
    with pytest.raises(RecordError, match=words):
        read_records("openai/gsm8k", "train", "main")


@pytest.mark.parametrize("library", ["datasets", "pyarrow"])
def test_a_missing_library_is_named_with_its_extra(folder, monkeypatch, library):
    path = "openai/gsm8k" if library == "datasets" else write_parquet(folder / "train.parquet")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(RecordError, match=rf"`{library}` to be installed.*pip install -c .*\[data\]"):
        read_records(path)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner, 1)])
@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 500])
def test_a_field_that_is_nested_too_deep_is_named(wrap, depth):
    value = "x"
    for _ in range(depth):
        value = wrap(value)
    rows = [{"prompt": "a"}, {"prompt": "b", "notes": value}]
    if depth <= DEEPEST:
        assert copied(records_in_memory(rows, "data")[1].values) == rows[1]
        return
    with pytest.raises(RecordError, match=r"^data, row 2: Expected field 'notes' to be nested at most 100 deep"):
        records_in_memory(rows, "data")
