"""The card at the end of ``fit``: before, at the end and best, with the next commands."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from lightning_cgrpo.callbacks.closing_card import closing_lines, closing_table, show_closing_card
from lightning_cgrpo.run.record import RunRecord


def measured(update, low, high, value, reward):
    constraints = {"safe": {"value": value, "low": low, "high": high}}
    return {"update": update, "prompts": 90, "constraints": constraints, "reward": {"value": reward, "error": 0.01}}


RECORD = {
    "status": "interrupted",
    "error": None,
    "updates": 40,
    "asked": 100,
    "answers": 5120,
    "seconds": 90.0,
    "constraints": {
        "safe": {"kind": "rate", "direction": "at_least", "threshold": 0.9, "role": "constrain"},
        "[b]long[/b]": {"kind": "mean", "direction": "at_most", "threshold": None, "role": "monitor"},
    },
    "measured": {
        "before": measured(0, 0.5, 0.6, 0.55, 0.1),
        "end": {"update": 40, "constraints": {"safe": {"value": 0.93}}, "reward": {"value": 0.25}},
        "last": measured(40, 0.88, 0.95, 0.92, 0.3),
        "best": measured(20, 0.91, 0.97, 0.94, 0.2),
    },
    "best": {"checkpoint": "checkpoints/step=20.ckpt", "monitor": "val/merit", "score": 1.16},
}


def text_of(record, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(closing_table(RunRecord.read(record)), crop=False)
    return console.export_text()


def test_met_and_missed_of_what_was_measured():
    text = text_of(RECORD, 120)
    assert "Run interrupted" in text and "safe >= 0.9" in text
    assert "0.550 (0.500-0.600) missed" in text and "0.940 (0.910-0.970) met" in text and "0.930" in text
    assert "last validation" not in text, "the best checkpoint is the one that later commands take"
    assert "0.2 ± 0.01" in text
    alone = {**RECORD, "measured": {"last": RECORD["measured"]["last"]}}
    assert "0.920 (0.880-0.950) undecided" in text_of(alone, 120)


def test_nothing_is_cut_off_at_80_columns():
    for name in ("correctness", "drivable_area_compliance"):
        constraint = {**RECORD["constraints"]["safe"], "role": "monitor"}
        renamed = {key: {name: of["constraints"]["safe"]} for key, of in RECORD["measured"].items()}
        measured = {key: {**of, "constraints": renamed[key]} for key, of in RECORD["measured"].items()}
        text = text_of({**RECORD, "constraints": {name: constraint}, "measured": measured}, 80)
        assert "…" not in text and max(map(len, text.splitlines())) <= 80
        assert "(0.500-0.600)" in text and "(0.910-0.970)" in text
        assert f"{name} >= 0.9 " in text or len(name) > 20, "a name and its threshold stay on one line"


@pytest.mark.usefixtures("folder")
def test_sentences_break_at_words_and_commands_nowhere(monkeypatch):
    folder = Path("runs/a_run_with_a_long_name/version_0")
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    screen = Console(width=80, force_terminal=True, record=True, file=io.StringIO())
    monkeypatch.setattr("lightning_cgrpo.callbacks.closing_card.get_console", lambda: screen)
    show_closing_card(RunRecord.read({**RECORD, "best": {**RECORD["best"], "score": -1.125}}), folder)
    sentences, _, commands = screen.export_text().partition("Next:")
    assert max(map(len, sentences.splitlines())) <= 80
    assert "by val/merit -1.125. It is the latest whose estimates met" in " ".join(sentences.split())
    assert "export -c runs/a_run_with_a_long_name/version_0/config.yaml --out model\n" in commands


def test_next_commands(tmp_path):
    assert len(closing_lines(RunRecord.read(RECORD), tmp_path)) == 3, "a run from Python"
    (tmp_path / "config.yaml").touch()
    lines = closing_lines(RunRecord.read(RECORD), tmp_path)
    assert lines[0] == "40 of 100 updates, 5,120 answers, 1.5 min."
    assert f"{tmp_path}/checkpoints/step=20.ckpt, of update 20, by val/merit 1.16" in lines[1]
    assert [line.split()[3] for line in lines if "lightning_cgrpo" in line] == ["test", "certify", "export"]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").touch()
    resume = f"  python -m lightning_cgrpo fit -c {tmp_path}/config.yaml --ckpt_path={tmp_path}/checkpoints/last.ckpt"
    assert resume in closing_lines(RunRecord.read(RECORD), tmp_path)
    assert resume not in closing_lines(RunRecord.read({**RECORD, "status": "finished"}), tmp_path)
    assert not any(" export " in line for line in closing_lines(RunRecord.read(RECORD), tmp_path, exports=False))
    unbounded = {**RECORD, "asked": None}
    assert closing_lines(RunRecord.read(unbounded), tmp_path)[0] == "40 updates, 5,120 answers, 1.5 min."
    lines = closing_lines(RunRecord.read(RECORD), tmp_path, " --data.test_path=FILE")
    assert sum(line.endswith("config.yaml --data.test_path=FILE") for line in lines) == 2
    failed = closing_lines(RunRecord.read({**RECORD, "status": "failed"}), tmp_path)
    assert len(failed) == 3, "the error says what to do"


NONE = "It is the last, because no policy of the last third of the validations met all thresholds."
CHOSEN = "It is the latest whose estimates met all thresholds, with nearly the highest reward."


@pytest.mark.parametrize(
    ("low", "high", "value", "prompts", "said"),
    [
        (0.91, 0.97, 0.94, 90, [CHOSEN]),
        (0.1, 1.0, 0.94, 90, [CHOSEN, "90 validation prompts leave safe undecided."]),
        (0.1, 1.0, 0.89, 90, [NONE]),
        (0.1, 1.0, 0.94, 9, ["It is the last, because 9 validation prompts can't rank policies by safe."]),
    ],
)
def test_why_a_checkpoint_is_the_best(tmp_path, low, high, value, prompts, said):
    best = {**measured(20, low, high, value, 0.2), "prompts": prompts}
    record = {**RECORD, "measured": {"best": best}}
    assert closing_lines(RunRecord.read(record), tmp_path)[2:] == said
    ranked = {**record, "best": {**RECORD["best"], "monitor": "val/reward/mean"}}
    assert len(closing_lines(RunRecord.read(ranked), tmp_path)) == 2, "by a metric that the user chose"


def test_the_card_says_what_a_declared_look_would_find(tmp_path):
    best = measured(20, 0.91, 0.97, 0.92, 0.2)
    chance = {"whole": 0.41, "each": {"safe": 0.41}, "more": {"2000": 0.7, "5000": 0.93, "10000": 0.96}}
    look = {"prompts": 1_000, "confidence": 0.95, "chance": 0.9}
    of_best = {"best": {**best, "targets": {"safe": 0.9287}, "chance": chance}}
    said = closing_lines(RunRecord.read({**RECORD, "look": look, "measured": of_best}), tmp_path)[2:]
    assert said == [
        "It is the most likely of the last third of the validations to be certified.",
        "`certify` with 1,000 prompts certifies it with a chance of 41%, as far as validation tells.",
        "It is short of the targets for this look: safe 0.92 (>= 0.929).",
        "That is less than the 90% that are declared, so don't spend the look yet: with --prompts 5000 the chance is "
        "93%. safe >= 0.9 is the least likely (41%): more updates, or a looser at_least, may raise it.",
    ]
    # No number of prompts has the chance.
    hopeless = {"best": {**best, "chance": {**chance, "more": {"2000": 0.3, "5000": 0.12, "10000": 0.02}}}}
    last = closing_lines(RunRecord.read({**RECORD, "look": look, "measured": hopeless}), tmp_path)[-1]
    assert "don't spend the look yet: more prompts alone don't help (with 10,000 the chance is 2%). safe >= 0.9" in last
    # A target between the estimate and the chance is no fault.
    sure = {"best": {**best, "targets": {"safe": 0.93}, "chance": {**chance, "whole": 0.95}}}
    assert len(closing_lines(RunRecord.read({**RECORD, "look": look, "measured": sure}), tmp_path)) == 4
