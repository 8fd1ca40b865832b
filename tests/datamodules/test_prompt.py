import json
from collections import deque

import numpy as np
import pandas
import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.fingerprints import record_fingerprints
from lightning_cgrpo.core.prompts.records import RecordError
from lightning_cgrpo.datamodules.prompt import PromptDataModule
from lightning_cgrpo.run.looks import Used

CHAT = [{"role": "user", "content": "Hi"}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.jsonl", [{"prompt": f"train {n}", "n": n} for n in range(10)])
    write(tmp_path / "test.jsonl", [{"prompt": f"test {n}"} for n in range(5)])
    return str(tmp_path)


def everything(source):
    return source.groups(torch.arange(len(source)))


def prompts(source):
    return everything(source).columns["prompt"]


def test_prompts_and_their_other_columns(tmp_path):
    rows = [{"prompt": "a", "n": 1}, {"prompt": CHAT, "tags": ["x"]}, {"prompt": "c", "n": 3}]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning, match=r"a.jsonl without a column, .* \{'n': 1, 'tags': 2\} of 3\."):
        source = PromptDataModule(path).source("train")
    groups = source.groups(torch.tensor([2, 0, 1]))
    assert groups.index.tolist() == [2, 0, 1]
    assert groups.columns == {"prompt": ["c", "a", CHAT], "n": [3, 1, None], "tags": [None, None, ["x"]]}
    # The same for the same index, and no columns are lost where there are no prompts.
    assert source.groups(torch.tensor([2])).columns == {"prompt": ["c"], "n": [3], "tags": [None]}
    assert source.groups(torch.zeros(0, dtype=torch.int64)).columns == {"prompt": [], "n": [], "tags": []}


def test_a_column_of_clusters():
    rows = [{"prompt": "a", "of": 1}, {"prompt": "b", "of": "1"}, {"prompt": "c", "of": 1}, {"prompt": "d", "of": None}]
    data = PromptDataModule([{"prompt": "e", "of": 2}], test_path=rows, cluster="of")
    a, b, c, d = everything(data.source("test")).clusters
    assert a == c and len({a, b, d}) == 3
    assert everything(PromptDataModule(rows).source("train")).clusters is None
    empty = [{"prompt": str(number), "of": of} for number, of in enumerate([None, "", float("nan"), float("nan"), ""])]
    missing = PromptDataModule([{"prompt": "e", "of": 2}], test_path=empty, cluster="of")
    assert len(set(everything(missing.source("test")).clusters)) == 5, "as empty cells of a table are read"
    looked = data.certification(None).clusters
    assert looked[0] == looked[2] and len(set(looked)) == 3
    with pytest.raises(UserError, match=r"data\.cluster to be a column of every split, but got 'off', try one of of"):
        PromptDataModule(rows, cluster="off").source("train")


def test_another_column_and_a_system_prompt(tmp_path):
    kept = [{"role": "system", "content": "Be terse."}, *CHAT]
    filled = [{**kept[0], "name": None}, *CHAT]  # as Parquet fills the fields that a message lacks
    path = write(tmp_path / "a.jsonl", [{"question": "Hi"}, {"question": CHAT}, {"question": filled}])
    data = PromptDataModule(path, prompt_column="question", system_prompt="Be kind.")
    first, second, third = prompts(data.source("train"))
    assert first == second == [{"role": "system", "content": "Be kind."}, *CHAT]
    assert third == kept
    assert prompts(PromptDataModule(path, prompt_column="question").source("train")) == ["Hi", CHAT, kept]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "x"}, "a field 'prompt'"),
        ({"prompt": None}, "field 'prompt' to have a value, but it is null"),
        ({"prompt": 3}, "a string"),
        ({"prompt": []}, "empty"),
        ({"prompt": ["Hi"]}, "message 1"),
        ({"prompt": [{"role": 1, "content": "Hi"}]}, "'role' in message 1"),
        ({"prompt": [{"role": "assistant", "content": None, "tool_calls": []}]}, "'content' in message 1"),
    ],
)
def test_a_malformed_prompt_is_named_before_training(tmp_path, row, problem):
    path = write(tmp_path / "a.jsonl", [{"prompt": "fine"}, row])
    with pytest.raises(RecordError) as error:
        PromptDataModule(path).setup("fit")
    assert str(error.value).startswith(f"{path}:2: ") and problem in str(error.value)


def test_a_column_that_would_be_overwritten_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "Hi", "prompt": "Ho"}])
    with pytest.raises(RecordError, match=r"a\.jsonl:1: Expected no field 'prompt' beside 'question'"):
        PromptDataModule(path, prompt_column="question").setup("fit")


def test_held_out_prompts_are_those_of_the_rule_and_not_trained_on(folder):
    data = PromptDataModule(folder, val_prompts=3)
    assert prompts(data.source("val")) == ["train 0", "train 3", "train 6"]
    assert prompts(data.source("train")) == [f"train {n}" for n in (1, 2, 4, 5, 7, 8, 9)]
    assert prompts(data.source("test")) == [f"test {n}" for n in range(5)]
    again = PromptDataModule(folder, val_prompts=3, seed=1)
    for split in ("train", "val", "test"):
        assert everything(data.source(split)).columns == everything(again.source(split)).columns


def test_more_held_out_prompts_than_there_are(folder):
    with pytest.raises(UserError, match="held out of the 10 training prompts, to be fewer"):
        PromptDataModule(folder, val_prompts=11).source("val")


def test_training_prompts_in_a_test_are_those_trained_on(folder, tmp_path):
    """Not those held out, and read before a model is."""
    data = PromptDataModule(folder, val_prompts=3, test_train_prompts=3)
    data.setup("test")
    tested, trained = (list(loader) for loader in data.test_dataloader())
    assert [groups.columns["prompt"] for groups in tested] == [[f"test {n}" for n in range(5)]]
    assert [groups.columns["prompt"] for groups in trained] == [["train 1", "train 4", "train 7"]]
    test = write(tmp_path / "other.jsonl", [{"prompt": "test"}])
    with pytest.raises(RecordError, match="nowhere"):
        PromptDataModule("nowhere.jsonl", test_path=test, test_train_prompts=3).setup("test")
    PromptDataModule("nowhere.jsonl", test_path=test).setup("test")


def test_splits_that_there_are_not(folder, tmp_path):
    with pytest.raises(UserError, match=r"`test_path`, since `path` is a file of training prompts: .*train\.jsonl"):
        PromptDataModule(f"{folder}/train.jsonl").setup("test")
    with pytest.raises(UserError, match="`val_prompts` or `val_path`"):
        PromptDataModule(folder).setup("validate")
    with pytest.raises(ValueError, match="`val_prompts` to be at least 0, but got -1"):
        PromptDataModule(folder, val_prompts=-1)


def test_a_missing_test_file_is_told_before_training(tmp_path):
    """Otherwise a typo shows only when the trained policy is tested."""
    path = write(tmp_path / "a.jsonl", [{"prompt": str(n)} for n in range(10)])
    with pytest.raises(UserError, match=r"Expected a file at data\.test_path=.*tset\.jsonl, but there is none"):
        PromptDataModule(path, test_path=str(tmp_path / "tset.jsonl")).setup("fit")


class TestCertification:
    """Test prompts that trained or validated certify nothing."""

    def data(self, tmp_path, test, **options):
        for name, words in (("train", "abcdef"), ("test", test), ("validation", "gh")):
            write(tmp_path / f"{name}.jsonl", [{"prompt": word} for word in words])
        return PromptDataModule(str(tmp_path), seed=0, **options)

    @pytest.mark.parametrize("options", [{"val_path": "validation.jsonl"}, {"val_prompts": 2}, {}])
    def test_they_are_left_out(self, tmp_path, options):
        if "val_path" in options:
            options = {"val_path": str(tmp_path / options["val_path"])}
        found = self.data(tmp_path, "xaygz", **options).certification(None)
        left_out = "ag" if "val_path" in options else "a"
        assert prompts(found.source) == [word for word in "xaygz" if word not in left_out]
        n = len(left_out)
        assert found.words == f"the {5 - n} test prompts without {n} that trained or validated"

    def test_what_each_was_used_for_is_told(self, tmp_path):
        """By the manifest, whatever the data's own files say now."""
        data = self.data(tmp_path, "qrstuv")
        of = dict(zip("qrstuv", record_fingerprints(data.source("test").rows)[:, 1:], strict=True))
        run = {"that trained": torch.cat([of["q"], of["r"]]), "that validated": torch.cat([of["r"], of["s"]])}
        words = data.certification(None, Used(run)).words
        assert words == "the 3 test prompts without 2 that trained and without 1 that validated"
        run["that trained or validated before"] = torch.cat([of[word] for word in "tuv"])
        told = "of 6 test prompts without 2 that trained and without 1 that validated and without 3 that trained or"
        with pytest.raises(UserError, match=f"Expected some .* but got 0, {told} validated before, try other"):
            data.certification(None, Used(run))

    def test_repeats_count_once_whatever_the_other_columns_say(self, tmp_path):
        data = self.data(tmp_path, "xayx")
        rows = [{"prompt": word, "answer": number} for number, word in enumerate("xayxxyz")]
        write(tmp_path / "test.jsonl", rows)
        found = data.certification(None)
        assert prompts(found.source) == ["x", "y", "z"]
        assert found.words == "the 3 test prompts without 1 that trained or validated and without 3 repeats"
        with pytest.raises(UserError, match="but got 3, of 7 test prompts"):
            data.certification(4)

    def test_a_part_is_drawn_at_random_and_never_more_than_there_are(self, tmp_path):
        data = self.data(tmp_path, "qrstuvwxyz")
        found = data.certification(4)
        drawn = prompts(found.source)
        assert found.words == "4 of 10 test prompts" and len(set(drawn)) == 4 and drawn != list("qrst")
        assert prompts(data.certification(4).source) == drawn
        with pytest.raises(UserError, match=r"Expected 11 different prompts .* but got 10, of 10 test prompts, try"):
            data.certification(11)

    def test_a_second_look_sees_none_of_the_first_look_s_prompts(self, tmp_path):
        data = self.data(tmp_path, "stuvwxyz")
        first = data.certification(3)
        second = data.certification(None, Used(looked=frozenset(first.identities)))
        seen, new = (prompts(look.source) for look in (first, second))
        assert len(seen) == 3 and sorted([*seen, *new]) == list("stuvwxyz")
        assert second.words == "the 5 test prompts without 3 that earlier looks saw"
        with pytest.raises(UserError, match=r"Expected 6 different prompts .* but got 5"):
            data.certification(6, Used(looked=frozenset(first.identities)))


ROWS = [{"prompt": f"train {n}", "answer": str(n)} for n in range(4)]


def dataset(rows):
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def numbered(rows):
    """Rows whose values are arrays without dimensions, as in a `Dataset` with the format numpy."""
    return [{name: np.array(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("given", [list, tuple, deque, dataset, numbered])
def test_rows_in_memory(given):
    """Of training, validation and test; a task gets what a file of the same rows gives."""
    data = PromptDataModule(given(ROWS), prompts_per_update=2, val_path=given(ROWS[:1]), test_path=given(ROWS[1:]))
    with pytest.warns(UserWarning, match="1 of the 1 validation prompts are training prompts"):
        data.setup("fit")
    assert everything(data.source("train")).columns == {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert prompts(data.source("val")) == ["train 0"]
    assert prompts(data.source("test")) == ["train 1", "train 2", "train 3"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": ROWS}, r"row 1 is a str, try .* one split of a DatasetDict"),
        (["a"], "row 1 is a str"),
        ([], "hold rows, but got none"),
        (pandas.DataFrame(ROWS), r"row 1 is a str, try .* as from frame\.to_dict\('records'\)"),
        (iter(ROWS), "the given list_iterator to hold rows that can be read several times"),
        (7, "the given int to hold rows"),
        ([{"prompt": "a"}, {"text": "b"}], "the given list, row 2: Expected a field 'prompt'"),
    ],
)
def test_other_objects_are_refused(given, words):
    with pytest.raises(RecordError, match=words):
        PromptDataModule(given).setup("fit")


def test_rows_in_memory_have_no_test_split():
    data = PromptDataModule(ROWS)
    assert data.needs_test_path
    with pytest.raises(UserError, match=r"Expected argument `test_path`.*: the given list\."):
        data.source("test")


FILES = {
    "a.csv": 'prompt,answer\ntrain 0,0\n"train 1",1\ntrain 2,2\n\ntrain 3,3\n',
    "b.csv": "\ufeffprompt,answer\r\n" + "".join(f"train {n},{n}\r\n" for n in range(4)),
    "a.json": json.dumps(ROWS),
    "b.json": "\ufeff" + json.dumps(ROWS, indent=1),
}


@pytest.mark.parametrize("name", FILES)
def test_csv_and_json_arrays(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name].encode())
    columns = everything(PromptDataModule(str(tmp_path / name)).source("train")).columns
    assert columns == {column: [row[column] for row in ROWS] for column in ROWS[0]}


def test_a_csv_text_of_several_lines(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,answer\n"a, ""b""\nc",1\n' + f"{'x' * 200_000},2\n")
    assert prompts(PromptDataModule(str(tmp_path / "a.csv")).source("train")) == ['a, "b"\nc', "x" * 200_000]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "prompt,answer\na,1\nb\n", r"a.csv:3: Expected 2 values, as columns, but got 1"),
        ("a.csv", "prompt,prompt\na,1\n", r"a.csv:1: Expected different names"),
        ("a.csv", 'prompt\n"a\n', "to be a CSV file in UTF-8"),
        ("a.csv", "prompt,answer\n", "to hold records, but got none"),
        ("a.csv", "", "to hold records, but got none"),
        ("a.json", '{"prompt": "a"}\n{"prompt": "b"}\n', r"array of JSON objects, but got.*\.jsonl"),
        ("a.json", '{"prompt": "a"}', "array of JSON objects, but got a dict"),
        ("a.json", '[{"prompt": "a"}, "b"]', "item 2: Expected a JSON object, but got a str"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordError, match=words):
        PromptDataModule(str(tmp_path / name)).source("train")


def test_repeats_of_held_out_prompts_are_told_and_not_trained_on(tmp_path):
    """Other repeats are."""
    path = write(tmp_path / "a.jsonl", [{"prompt": text} for text in "abcabdaee"])
    data = PromptDataModule(path, prompts_per_update=2, val_prompts=1)
    with pytest.warns(UserWarning, match="2 of the 9 training prompts are left out, because they repeat one of the 1"):
        data.setup("fit")
    assert prompts(data.source("val")) == ["a"]
    assert prompts(data.source("train")) == ["b", "c", "b", "d", "e", "e"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("texts", "held"), [("a" * 12, 2), ("abcdefghijkl", 12), ("abcdefghijkl", 10)])
def test_nothing_left_to_train_on_names_the_held_out_prompts(tmp_path, texts, held):
    """Twelve equal lines; and all lines, or all but too few, held out."""
    path = write(tmp_path / "a.jsonl", [{"prompt": text} for text in texts])
    data = PromptDataModule(path, prompts_per_update=8, val_prompts=held)
    with pytest.raises(UserError, match=rf"Expected data.val_prompts={held} to leave at least 8 training prompts"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("asked", "there", "hint"),
    [
        ("prompts.jsonl", ["test.jsonl", "prompts_test.jsonl"], None),
        ("prompts.jsonl", ["test_prompts.jsonl", "prompt.jsonl"], "prompt.jsonl"),
        ("train.jsonl", ["train_val.jsonl", "train_eval.jsonl"], None),
        ("test.jsonl", ["train.jsonl", "val.jsonl"], None),
        ("tests.jsonl", ["test.jsonl", "train.jsonl"], "test.jsonl"),
    ],
)
def test_no_hint_names_prompts_of_another_use(tmp_path, asked, there, hint):
    """A hint that is followed must not train on test prompts."""
    for name in there:
        write(tmp_path / name, [{"prompt": "a"}])
    with pytest.raises(RecordError) as error:
        PromptDataModule(str(tmp_path / asked)).source("train")
    assert str(error.value).endswith(f" Did you mean '{hint}'?" if hint else ").")
