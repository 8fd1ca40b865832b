import json

import pytest
import torch

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.records import RecordError
from lightning_cgrpo.datamodules.prompt import PromptDataModule

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
    path = write(
        tmp_path / "a.jsonl", [{"prompt": "a", "n": 1}, {"prompt": CHAT, "tags": ["x"]}, {"prompt": "c", "n": 3}]
    )
    with pytest.warns(UserWarning, match=r"a.jsonl without a column, .* \{'n': 1, 'tags': 2\} of 3\."):
        source = PromptDataModule(path).source("train")
    groups = source.groups(torch.tensor([2, 0, 1]))
    assert groups.index.tolist() == [2, 0, 1]
    assert groups.columns == {"prompt": ["c", "a", CHAT], "n": [3, 1, None], "tags": [None, None, ["x"]]}
    # The same for the same index, and no columns are lost where there are no prompts.
    assert source.groups(torch.tensor([2])).columns == {"prompt": ["c"], "n": [3], "tags": [None]}
    assert source.groups(torch.zeros(0, dtype=torch.int64)).columns == {"prompt": [], "n": [], "tags": []}


def test_another_column_and_a_system_prompt(tmp_path):
    kept = [{"role": "system", "content": "Be terse."}, *CHAT]
    filled = [{**kept[0], "name": None}, *CHAT]  # as Parquet fills the fields that a message lacks
    path = write(tmp_path / "a.jsonl", [{"question": "Hi"}, {"question": CHAT}, {"question": filled}])
    first, second, third = prompts(
        PromptDataModule(path, prompt_column="question", system_prompt="Be kind.").source("train")
    )
    assert first == second == [{"role": "system", "content": "Be kind."}, *CHAT]
    assert third == kept
    assert prompts(PromptDataModule(path, prompt_column="question").source("train")) == ["Hi", CHAT, kept]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "x"}, "a field 'prompt'"),
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


def test_repetitions_of_a_held_out_prompt_are_not_trained_on(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": text} for text in "abcabdee"])
    data = PromptDataModule(path, val_prompts=1)
    assert prompts(data.source("val")) == ["a"]
    assert prompts(data.source("train")) == ["b", "c", "b", "d", "e", "e"]


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
            rows = "".join(json.dumps({"prompt": word}) + "\n" for word in words)
            (tmp_path / f"{name}.jsonl").write_text(rows)
        return PromptDataModule(str(tmp_path), seed=0, **options)

    def prompts(self, source):
        return source.groups(torch.arange(len(source))).columns["prompt"]

    @pytest.mark.parametrize("options", [{"val_path": "validation.jsonl"}, {"val_prompts": 2}, {}])
    def test_they_are_left_out(self, tmp_path, options):
        if "val_path" in options:
            options = {"val_path": str(tmp_path / options["val_path"])}
        found = self.data(tmp_path, "xaygz", **options).certification(None)
        source, words = found.source, found.words
        left_out = "ag" if "val_path" in options else "a"
        assert self.prompts(source) == [word for word in "xaygz" if word not in left_out]
        n = len(left_out)
        assert words == f"the {5 - n} test prompts without {n} that trained or validated"

    def test_repeats_count_once_whatever_the_other_columns_say(self, tmp_path):
        data = self.data(tmp_path, "xayx")
        rows = [{"prompt": word, "answer": number} for number, word in enumerate("xayxxyz")]
        (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = data.certification(None)
        source, words = found.source, found.words
        assert self.prompts(source) == ["x", "y", "z"]
        assert words == "the 3 test prompts without 1 that trained or validated and without 3 repeats"
        with pytest.raises(UserError, match="but got 3, of 7 test prompts"):
            data.certification(4)

    def test_a_part_is_drawn_at_random_and_never_more_than_there_are(self, tmp_path):
        data = self.data(tmp_path, "qrstuvwxyz")
        found = data.certification(4)
        source, words = found.source, found.words
        drawn = self.prompts(source)
        assert words == "4 of 10 test prompts" and len(set(drawn)) == 4 and drawn != list("qrst")
        assert self.prompts(data.certification(4).source) == drawn
        with pytest.raises(UserError, match=r"Expected 11 different prompts .* but got 10, of 10 test prompts, try"):
            data.certification(11)
