"""Answers on the screen, in TensorBoard and on disk, whatever is in them."""

import io
import json
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import TensorBoardLogger
from rich.cells import cell_len
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_cgrpo import GaussianMLP, Objective
from lightning_cgrpo.callbacks import SampleAnswers, WritePredictions
from lightning_cgrpo.callbacks.answers import answer_records
from lightning_cgrpo.callbacks.sample_answers import _answers_table, best_and_worst
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal

HOSTILE = [
    "[bold]x[/bold] [/] [link=file:///etc/passwd]y[/link]",
    "<script>alert(1)</script>\n\n# title\n| a | b |\n",
    "\x1b[31mred\x1b]0;title\x07\x00\r\nover\x08\x7f\x9b",
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


def records(of):
    return list(answer_records(of, None))


def show(callback, folder, of, update=0, rank=0, processes=1):
    """As the trainer would, in one update."""
    logger = TensorBoardLogger(folder, name="x", version=0)
    ranks = {"global_rank": rank, "world_size": processes, "is_global_zero": rank == 0}
    places = {"loggers": [logger], "default_root_dir": folder, "strategy": SimpleNamespace(broadcast=str)}
    trainer = SimpleNamespace(global_step=update + 1, **ranks, **places)
    module = SimpleNamespace(policy=None, objective=Objective("correct"))
    callback.on_train_start(trainer, module)
    callback.on_train_batch_end(trainer, module, of, None, 0)
    logger.finalize("success")


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_file_holds_all_answers_of_an_update(tmp_path, capsys):
    """Of one that is due, each with all that is known of it."""
    correct = Signal(torch.tensor([[1.0, 0.5], [1.0, 7.0]]), applicable=torch.tensor([[True] * 2, [False] * 2]))
    steps = Signal(torch.tensor([[[1.0, 2.0]] * 2, [[0.5, 0.25]] * 2]))
    of = outputs([["a", "b"], ["c", "d"]], correct=correct, steps=steps)
    of["rollouts"].info["extra/answer"] = [["x", "y"], [None, 3]]
    callback = SampleAnswers(every_n_updates=10, write=True)
    for update in (19, 20):
        show(callback, tmp_path, of, update)
    written = lines(tmp_path / "x/version_0/samples.jsonl")
    asked = {"step": 20, "index": 0, "prompt": "question 0", "answer": "b", "extra": {"answer": "y"}}
    scored = {"signals": {"correct": 0.5, "steps": 3}, "tokens": 2, "truncated": False, "advantage": -0.5}
    assert written[1] == asked | scored
    assert [record["signals"]["correct"] for record in written] == [1, 0.5, None, None]
    assert [record["extra"]["answer"] for record in written] == ["x", "y", None, 3]
    show(SampleAnswers(), tmp_path / "none", of)
    assert not (tmp_path / "none/x/version_0/samples.jsonl").exists()


def test_each_process_writes_its_own(tmp_path, capsys):
    """And the first one shows; one without prompts has nothing to write."""
    callback = SampleAnswers(write=True)
    for rank, text in enumerate(["of the first", "of the second"]):
        show(callback, tmp_path, outputs([[text]]), rank=rank, processes=3)
        assert [record["answer"] for record in lines(tmp_path / f"x/version_0/samples.{rank}.jsonl")] == [text]
    none = outputs([["x"]])
    none["prompts"] = PromptGroups(torch.arange(0), {"prompt": []})
    show(callback, tmp_path, none, rank=2, processes=3)
    out = capsys.readouterr().out
    assert "of the first" in out and "second" not in out


def test_predictions_of_any_text(tmp_path, capsys):
    """A line per answer, from which JSON gives back exactly what was answered."""
    of = outputs([HOSTILE], correct=Signal(torch.full((1, len(HOSTILE)), math.pi)))
    of["prompts"].columns["seed"] = [None]  # a column of the data, which is no world's seed
    callback = WritePredictions()
    run = {"loggers": [], "default_root_dir": tmp_path, "strategy": SimpleNamespace(broadcast=str)}
    trainer, module = SimpleNamespace(world_size=1, **run), SimpleNamespace(policy=None)
    callback.on_predict_start(trainer, module)
    callback.on_predict_batch_end(trainer, module, of, None, 0)
    callback.on_predict_end(trainer, module)
    written = lines(tmp_path / "predictions.jsonl")
    assert [record["answer"] for record in written] == HOSTILE
    assert all(record["signals"] == {"correct": pytest.approx(math.pi)} for record in written)
    assert f"Wrote {len(HOSTILE)} answers" in capsys.readouterr().out


def test_predicted_actions_are_those_that_the_world_gets():
    """A squashed policy's own actions are unbounded numbers, which no environment sees."""
    actions, mask = torch.tensor([[[[-9.0], [0.0], [9.0]]]]), torch.tensor([[[True, True, False]]])
    rollouts = Rollouts(actions, mask, {}, log_probs=torch.zeros(1, 1, 3))
    prompts = PromptGroups(torch.tensor([4]), {"seed": torch.tensor([17])})
    of = {"rollouts": rollouts, "prompts": prompts, "signals": {}}
    [[record]] = answer_records(of, GaussianMLP(2, 1, low=0.0, high=4.0))
    of_the_world = [[pytest.approx(0, abs=1e-6)], [2.0]]
    assert record == {"index": 4, "seed": 17, "answer": of_the_world, "signals": {}, "tokens": 2}


def on_screen(of, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, color_system=None)
    console.print(
        _answers_table(
            best_and_worst(records(of)[0]), {name: name for name in of["signals"]}, "Answers", console.encoding
        )
    )
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_the_screen_shows_the_best_and_the_worst_answer(tmp_path, capsys):
    """With the signals that the objective names; of one prompt."""
    correct, other = Signal(torch.tensor([[1.0, 0.5, 0.25]] * 2)), Signal(torch.zeros(2, 3))
    of = outputs([["wrong", "so so", "right"], ["no more", "than one", "prompt"]], correct=correct, other=other)
    show(SampleAnswers(), tmp_path, of, update=50)
    text = capsys.readouterr().out
    assert "Answers of update 50" in text and "question 1" not in text and "other" not in text and "so so" not in text
    rows = [line.split() for line in text.splitlines() if "─" not in line and line.strip()]
    assert rows[1:] == [
        ["prompt", "best", "answer", "worst", "answer"],
        ["question", "0", "right", "wrong"],
        ["correct", "0.25", "correct", "1"],
    ]
    show(SampleAnswers(), tmp_path / "equal", outputs([["same", "same"]]))
    assert capsys.readouterr().out.count("same") == 1


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("text", HOSTILE)
def test_the_screen_survives_any_text(text, encoding):
    """Tags are shown and do nothing; nothing moves the cursor; long texts are cut."""
    of = outputs([[text]], prompts=[text], **{text[:3] or "x": Signal(torch.ones(1, 1))})
    of["rollouts"].info[f"extra/{text[:4]}"] = [[text[:6]]]
    shown = on_screen(of, encoding=encoding).split("\n")
    assert len(shown) < 40
    assert all(character.isprintable() for line in shown for character in line)
    if text.startswith("[bold]"):
        assert any("[bold]x[/bold] [/]" in line for line in shown)
    if text.startswith("\x1b"):
        assert any(r"\x1b[31mred" in line for line in shown)


@given(st.text(max_size=60))
@settings(max_examples=40, deadline=None)
def test_any_text_makes_a_table_of_straight_rows(text):
    rows = on_screen(outputs([[text]], prompts=[text])).splitlines()
    assert {cell_len(row) for row in rows[1:]} <= {0, 80}


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
    assert outside == ["**Prompt**", "**Best answer** (correct 0)", "**Worst answer** (correct 1)"]


def test_prompts_of_all_kinds():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    of = outputs([["a"]] * 3, prompts=["text", chat, [{"role": "user", "content": parts}]])
    assert [group[0]["prompt"] for group in records(of)] == ["text", "Hi", "[image]\nWhat is it?"]
