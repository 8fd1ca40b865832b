"""Answers on the screen, in TensorBoard and on disk, whatever is in them."""

import builtins
import io
import json
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import TensorBoardLogger
from rich.cells import cell_len
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo import GaussianMLP
from lightning_cgrpo.callbacks import SampleAnswers, WritePredictions
from lightning_cgrpo.callbacks.sample_answers import _excerpt, _markdown, _table, write_parquet
from lightning_cgrpo.callbacks.shown_answers import answers_of, signal_values
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal

parquet = pytest.importorskip("pyarrow.parquet")

HOSTILE = [
    "[bold]x[/bold] [/] [link=file:///etc/passwd]y[/link]",
    "<script>alert(1)</script>\n\n# title\n| a | b |\n",
    "\x1b[31mred\x1b]0;title\x07\x00\r\nover\x08\x7f",
    "left\u202eright\u2028line\u0085next",
    "half \ud800 of a pair \udfff",
    "e\u0301\U0001f468\u200d\U0001f469\u200d\U0001f467 \u5b57",
    "    code\n```\n" * 3,
    "",
    "word " * 400_000,
    "line\n" * 100_000,
]


def outputs(texts, prompts=None, **signals):
    """What an update puts out, of texts by prompt and answer."""
    size = (len(texts), len(texts[0]))
    lengths = torch.arange(1, size[0] * size[1] + 1).view(size)
    mask = torch.arange(int(lengths.max())) < lengths[..., None]
    prompts = prompts or [f"question {n}" for n in range(size[0])]
    return {
        "prompts": PromptGroups(torch.arange(size[0]), {"prompt": prompts}),
        "rollouts": Rollouts(mask.long(), mask, {}, info={"text": texts, "truncated": lengths == lengths.max()}),
        "signals": signals or {"correct": Signal((lengths % 2).float())},
        "advantages": lengths / 4 - 1,
    }


def trainer_at(folder, update, rank=0, processes=1):
    logger = TensorBoardLogger(folder, name="x", version=0)
    return SimpleNamespace(
        global_step=update + 1,
        global_rank=rank,
        world_size=processes,
        is_global_zero=rank == 0,
        loggers=[logger],
        log_dir=logger.log_dir,
        default_root_dir=folder,
    )


def show(callback, folder, of, update=0, signals=("correct",), **process):
    """As the trainer would, in one update. Returns the files there are."""
    trainer = trainer_at(folder, update, **process)
    module = SimpleNamespace(task=SimpleNamespace(signals=dict.fromkeys(signals, "any")))
    callback.setup(trainer, module, "fit")
    callback.on_train_start(trainer, module)
    callback.on_train_batch_end(trainer, module, of, None, 0)
    trainer.loggers[0].finalize("success")
    return sorted(path.name for path in Path(trainer.log_dir).glob("completions/*"))


# ---------------------------------------------------------------------- on disk


def test_a_file_holds_all_answers_of_an_update(tmp_path, capsys):
    """Of one that is due, each with all that is known of it."""
    correct = Signal(
        torch.tensor([[1.0, 0.5, 0.0], [1.0, 7.0, 0.0]]), applicable=torch.tensor([[True] * 3, [False] * 3])
    )
    steps = Signal(torch.tensor([[[1.0, 2.0]] * 3, [[0.5, 0.25]] * 3]))
    of = outputs([["a", "b", "c"], ["d", "e", "f"]], correct=correct, steps=steps)
    callback = SampleAnswers(every_n_updates=10, parquet=True)
    assert show(callback, tmp_path, of, update=19) == []
    assert show(callback, tmp_path, of, update=20) == ["completions_00020.parquet"]
    table = parquet.read_table(tmp_path / "x/version_0/completions/completions_00020.parquet")
    assert table.to_pydict() == {
        "step": [20] * 6,
        "prompt": ["question 0"] * 3 + ["question 1"] * 3,
        "completion": list("abcdef"),
        "correct": [1, 0.5, 0, None, None, None],
        "steps": [3, 3, 3, 0.75, 0.75, 0.75],
        "advantage": [-0.75, -0.5, -0.25, 0, 0.25, 0.5],
        "tokens": [1, 2, 3, 4, 5, 6],
        "truncated": [False] * 5 + [True],
    }


def test_without_it_nothing_is_written(tmp_path, capsys):
    assert show(SampleAnswers(), tmp_path, outputs([["a"]])) == []


def test_signals_called_as_a_column_stand_in_its_place_or_are_refused(tmp_path, capsys):
    tokens = Signal(torch.tensor([[7.0]]))
    show(SampleAnswers(parquet=True), tmp_path, outputs([["a"]], tokens=tokens), signals=["tokens"])
    [row] = parquet.read_table(tmp_path / "x/version_0/completions/completions_00000.parquet").to_pylist()
    assert list(row) == ["step", "prompt", "completion", "tokens", "advantage", "truncated"] and row["tokens"] == 7
    for name in ("step", "prompt", "completion", "advantage"):
        of = outputs([["a"]], **{name: tokens})
        with pytest.raises(UserError, match=f"Expected no signal to be called '{name}', .* rename the signal"):
            show(SampleAnswers(parquet=True), tmp_path, of, signals=[name])
        show(SampleAnswers(), tmp_path, of, signals=[name])


def test_no_file_is_replaced(tmp_path, capsys):
    """A run that goes on in the same folder, from before an update that was written."""
    with warnings.catch_warnings(action="error"):
        show(SampleAnswers(parquet=True), tmp_path, outputs([["first"]]), update=50)
    with pytest.warns(UserWarning, match=r"written before, .* they stay, beside completions_00050-2\.parquet"):
        files = show(SampleAnswers(parquet=True), tmp_path, outputs([["again"]]), update=50)
    assert files == ["completions_00050-2.parquet", "completions_00050.parquet"]
    texts = [
        parquet.read_table(tmp_path / "x/version_0/completions" / file)["completion"].to_pylist() for file in files
    ]
    assert texts == [["again"], ["first"]]


def test_each_process_writes_its_own(tmp_path, capsys):
    """And the first one shows; one without prompts has nothing to write."""
    callback = SampleAnswers(parquet=True)
    show(callback, tmp_path, outputs([["of the first"]]), rank=0, processes=3)
    show(callback, tmp_path, outputs([["of the second"]]), rank=1, processes=3)
    none = outputs([["x"]])
    none["rollouts"].info["text"] = []
    files = show(callback, tmp_path, none, rank=2, processes=3)
    assert files == ["completions_00000.0.parquet", "completions_00000.1.parquet"]
    out = capsys.readouterr().out
    assert "of the first" in out and "second" not in out


@pytest.mark.parametrize("text", HOSTILE)
def test_files_hold_any_text(tmp_path, text):
    """As it is, but for halves of surrogate pairs, which no UTF-8 can hold."""
    of = outputs([[text, "b"]], prompts=[text])
    path = write_parquet(next(answers_of(of)), 3, tmp_path)
    first, second = parquet.read_table(path).to_pylist()
    expected = text.replace("\ud800", "\\ud800").replace("\udfff", "\\udfff")
    assert first["completion"] == first["prompt"] == expected and second["completion"] == "b"
    assert [entry.name for entry in tmp_path.iterdir()] == ["completions_00003.parquet"]


def test_without_pyarrow(tmp_path, monkeypatch, capsys):
    """One line before anything is trained, if files are wanted; otherwise it isn't missed."""
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *arguments, **named)

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=r"`pyarrow` to be installed.* pip install .*\[data\].* parquet: false"
    ) as error:
        SampleAnswers(parquet=True).setup(trainer_at(tmp_path, 0), None, "fit")
    assert "\n" not in str(error.value)
    SampleAnswers(parquet=True).setup(trainer_at(tmp_path, 0), None, "test")
    show(SampleAnswers(), tmp_path, outputs([["a"]]))


# ---------------------------------------------------------------------- on the screen


def on_screen(of, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, color_system=None)
    console.print(_table(list(answers_of(of)), "Answers", console.encoding))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_what_the_screen_shows(tmp_path, capsys):
    of = outputs([["right", "wrong"], ["no more", "than one prompt"]], correct=Signal(torch.tensor([[1.0, 0.25]] * 2)))
    show(SampleAnswers(), tmp_path, of, update=50)
    text = capsys.readouterr().out
    assert "Answers of update 50" in text and text.count("question 0") == 1 and "question 1" not in text
    rows = [[cell.split() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert rows == [
        [["question", "0"], ["right"], ["correct", "1"]],
        [[], [], ["advantage", "-0.75"]],
        [[], ["wrong"], ["correct", "0.25"]],
        [[], [], ["advantage", "-0.50"]],
    ]
    show(SampleAnswers(screen=False), tmp_path, of)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("text", HOSTILE)
def test_the_screen_survives_any_text(text, encoding):
    """Tags are shown and do nothing; nothing moves the cursor; long texts are cut."""
    lines = on_screen(outputs([[text]], prompts=[text]), encoding=encoding).split("\n")
    assert len(lines) < 40
    assert all(character.isprintable() for line in lines for character in line)
    if text.startswith("[bold]"):
        assert any("[bold]x[/bold] [/]" in line for line in lines)
    if text.startswith("\x1b"):
        assert any(r"\x1b[31mred\x1b]0;" in line for line in lines)


@given(st.text(max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_text_makes_a_table_with_straight_borders(text):
    _, *lines = on_screen(outputs([[text]], prompts=[text])).splitlines()
    assert len({cell_len(line) for line in lines}) == 1 and cell_len(lines[0]) <= 80


def test_a_long_text_keeps_its_end():
    text = "start " + "x" * 10_000 + " <answer>7</answer>"
    cut = _excerpt(text, 400, 12)
    assert cut.startswith("start xxx") and cut.endswith("xxx <answer>7</answer>") and " [...] " in cut
    assert len(cut) < 420
    lines = _excerpt("\n".join(map(str, range(100))), 400, 12).split("\n")
    assert lines == [*map(str, range(8)), "[...]", "96", "97", "98", "99"]
    assert _excerpt("a\nb", 3, 2) == "a\nb"


# ---------------------------------------------------------------------- in TensorBoard


@pytest.mark.parametrize("text", HOSTILE)
def test_tensorboard_survives_any_text(tmp_path, text, capsys):
    show(SampleAnswers(), tmp_path, outputs([[text, "b"]], prompts=[text]), update=100)
    events = EventAccumulator(str(tmp_path / "x/version_0"))
    events.Reload()
    [event] = events.Tensors("samples/text_summary")
    assert event.step == 100
    markdown = event.tensor_proto.string_val[0].decode()
    assert len(markdown) < 100_000
    # What the texts hold is in blocks of code: nothing else but our own headings is Markdown.
    outside = [line for line in markdown.split("\n") if line and not line.startswith("    ")]
    assert outside == [
        "**Prompt**",
        "**Answer 1** (correct 1, advantage -0.75)",
        "**Answer 2** (correct 0, advantage -0.50)",
    ]


def test_the_markdown_of_two_prompts():
    of = outputs(
        [["a"], ["b"]], correct=Signal(torch.tensor([[1.0], [0.0]]), applicable=torch.tensor([[True], [False]]))
    )
    assert _markdown(list(answers_of(of))) == (
        "**Prompt**\n\n    question 0\n\n**Answer 1** (correct 1, advantage -0.75)\n\n    a\n\n"
        "**Prompt**\n\n    question 1\n\n**Answer 1** (correct n/a, advantage -0.50)\n\n    b\n"
    )


# ---------------------------------------------------------------------- values


def test_prompts_of_all_kinds():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    of = outputs([["a"]] * 3, prompts=["text", chat, [{"role": "user", "content": parts}]])
    assert [group[0].prompt for group in answers_of(of)] == ["text", "Hi", "[image]\nWhat is it?"]
    assert len(list(answers_of(of, prompts=2))) == 2


def test_advantages_of_steps_are_averaged_over_those_there_are():
    of = outputs([["a", "b"]])
    of["advantages"] = torch.tensor([[[1.0, 9.0], [1.0, 2.0]]])
    assert [answer.advantage for answer in next(answers_of(of))] == [1.0, 1.5]


def test_values_of_signals():
    value = torch.tensor([[1, 0], [0, 1]])
    assert signal_values(Signal(value)) == [[1, 0], [0, 1]]
    assert signal_values(Signal(value == 1, applicable=value == 0)) == [[None, 0], [0, None]]
    assert signal_values(Signal(torch.full((1, 2, 3), 0.5))) == [[1.5, 1.5]]


@pytest.mark.parametrize("missing", ["text", "prompt"])
def test_answers_that_are_no_text_are_refused(tmp_path, missing):
    of = outputs([["a"]])
    (of["rollouts"].info if missing == "text" else of["prompts"].columns).pop(missing)
    with pytest.raises(UserError, match="Expected answers in text for SampleAnswers, but got none; use Pictures"):
        show(SampleAnswers(), tmp_path, of)


@pytest.mark.parametrize("name", ["every_n_updates", "prompts", "answers"])
def test_refusals(name):
    with pytest.raises(ValueError, match=f"Expected argument `{name}` to be at least 1, but got 0"):
        SampleAnswers(**{name: 0})


# ---------------------------------------------------------------------- predictions


def test_predictions_of_any_text(tmp_path, capsys):
    """A line per answer, from which JSON gives back exactly what was answered."""
    of = outputs([HOSTILE], correct=Signal(torch.full((1, len(HOSTILE)), math.pi)))
    callback = WritePredictions(str(tmp_path / "answers.jsonl"))
    trainer, module = SimpleNamespace(world_size=1, global_rank=0, ckpt_path="x"), SimpleNamespace(policy=None)
    callback.on_predict_start(trainer, module)
    callback.on_predict_batch_end(trainer, module, of, None, 0)
    callback.on_predict_end(trainer, module)
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").split("\n")
    records = [json.loads(line) for line in lines[:-1]]
    assert [record["answer"] for record in records] == HOSTILE and lines[-1] == ""
    assert all(record["signals"] == {"correct": pytest.approx(math.pi)} for record in records)
    assert f"Wrote {len(HOSTILE)} answers" in capsys.readouterr().out


def test_predicted_actions_are_those_that_the_world_gets(tmp_path):
    """A squashed policy's own actions are unbounded numbers, which no environment sees."""
    rollouts = Rollouts(
        actions=torch.tensor([[[[-9.0], [0.0], [9.0]]]]),
        mask=torch.tensor([[[True, True, False]]]),
        inputs={},
        log_probs=torch.zeros(1, 1, 3),
    )
    prompts = PromptGroups(torch.tensor([4]), {"seed": torch.tensor([17])})
    callback = WritePredictions(str(tmp_path / "answers.jsonl"))
    trainer = SimpleNamespace(world_size=1, global_rank=0, ckpt_path="x")
    module = SimpleNamespace(policy=GaussianMLP(2, 1, low=0.0, high=4.0))
    callback.on_predict_start(trainer, module)
    callback.on_predict_batch_end(trainer, module, {"rollouts": rollouts, "prompts": prompts, "signals": {}}, None, 0)
    record = json.loads((tmp_path / "answers.jsonl").read_text())
    assert record == {"index": 4, "seed": 17, "answer": [[pytest.approx(0, abs=1e-6)], [2.0]], "signals": {}}
