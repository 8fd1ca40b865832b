import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_cgrpo.tasks.gsm8k.scoring import TAGS, gold_answer, read_number, score_completion


def asked_format(answer: str, thought: str = "So it is.") -> str:
    return f"<think>{thought}</think>\n<answer>{answer}</answer>"


def scores(completion: str, answer: str, profile: str = "robust") -> tuple[float, float, float]:
    score = score_completion(completion, answer, profile)
    assert list(score) == ["correctness", "format", "integer"]
    return tuple(score.values())


UNREADABLE = [
    ("72", ("", "72.5", "$€72", "72½", "72 thousand", "72k", "72 or more", "72 is what I get after all of that")),
    ("72", ("72 73", "7_2", "Infinity", "seventy-two")),
    ("5", ("$5M", "\N{POUND SIGN}5m", "5 B", "5 half-hours", "5 squared", "5 scores")),
    ("2", ("2 dozens", "2 thirds of it")),
    ("3", ("3 millions", "3 quarters")),
    ("4", ("4 zillion",)),
    ("6", ("6 point five",)),
    ("7.2", ("7.2.0",)),
    ("70", ("7e1",)),
    ("123", (",123",)),
    ("1234", ("12,34",)),
]
"""Gold answers, each with answers of which no number is read."""
NUMBERS_ALONE = [
    ("72", ("72.", "72.0", "$72", "72%", "72 dollars", "$72 per day", "72km/h", "72 m²")),
    ("-72", ("-$72",)),
    ("-10", ("\N{MINUS SIGN}10",)),
    ("0.5", (".5",)),
    ("1072.5", ("€1,072.50",)),
    ("8", ("8 o'clock",)),
    ("5", ("5 m", "5 seconds")),
    ("111" * 11, ("111," * 10 + "111",)),
]
"""Answers that are right, but no integers, under robust, and neither under authors."""
NUMBERS = [
    # answer, gold, correct and integer under robust, correct and integer under authors
    ("72", "72", (1, 1), (1, 1)),
    (" 72\n", "72", (1, 1), (1, 1)),
    ("73", "72", (0, 1), (0, 1)),
    ("1,234", "1,234", (1, 1), (1, 0)),
    ("1234", "1,234", (1, 1), (0, 1)),
    ("1,234", "1234", (1, 1), (0, 0)),
    ("1,234,567", "1234567", (1, 1), (0, 0)),
    ("-10", "-10", (1, 1), (1, 0)),
    ("10", "-10", (0, 1), (0, 1)),
    ("+10", "10", (1, 1), (0, 0)),
    ("007", "7", (1, 1), (0, 1)),
    ("72²", "72", (0, 0), (0, 1)),
    ("NaN", "NaN", (0, 0), (1, 0)),
    ("²", "2", (0, 0), (0, 1)),
    ("٧٢", "72", (0, 0), (0, 1)),
    ("1" * 32, "1" * 32, (1, 1), (1, 1)),
    ("1" * 33, "1" * 33, (1, 0), (1, 1)),
    ("1" * 5_000, "1" * 5_000, (0, 0), (1, 1)),
    *[(answer, gold, (0, 0), (0, 0)) for gold, answers in UNREADABLE for answer in answers],
    *[(answer, gold, (1, 0), (0, 0)) for gold, answers in NUMBERS_ALONE for answer in answers],
]


@pytest.mark.parametrize(("answer", "gold", "robust", "authors"), NUMBERS)
def test_correctness_and_integer(answer, gold, robust, authors):
    for profile, expected in (("robust", robust), ("authors", authors)):
        correct, well_formed, integer = scores(asked_format(answer), f"Because.\n#### {gold}", profile)
        assert (correct, integer) == expected, profile
        assert well_formed == 1
        assert scores(asked_format(answer), gold, profile) == (correct, well_formed, integer)


COMPLETIONS = [
    # completion to gold 7: correctness, format and integer under robust, and under authors
    ("<think>a</think>\n<answer>7</answer>", (1, 1, 1), (1, 1, 1)),
    ("<think>a</think>\n<answer>7</answer>\n", (1, 1, 1), (1, 1, 1)),
    ("<think></think>\n<answer></answer>", (0, 1, 0), (0, 1, 0)),
    ("<think>a\n\nb</think>\n<answer>\n7\n</answer>", (1, 1, 1), (1, 1, 1)),
    ("\n<think>a</think>\n<answer>7</answer>", (1, 0, 1), (1, 0, 1)),
    ("<think>a</think><answer>7</answer>", (1, 0, 1), (1, 0, 1)),
    ("<think>a</think>\n<answer>7</answer> done", (1, 0, 1), (1, 0, 1)),
    ("<Think>a</Think>\n<Answer>7</Answer>", (0, 0, 0), (0, 0, 0)),
    ("<think>a<think>b</think>\n<answer>7</answer>", (1, 0, 1), (1, 1, 1)),
    ("<think>a</think>b</think>\n<answer>7</answer>", (1, 0, 1), (1, 1, 1)),
    ("<think>a</think>\n<answer>6</answer><answer>7</answer>", (1, 0, 1), (1, 0, 1)),
    ("<answer>6</answer> no, <answer>7</answer>", (1, 0, 1), (1, 0, 1)),
    ("<think>a</think>\n<answer>7", (1, 0, 1), (1, 0, 1)),
    ("<think>a</think>\n<answer>", (0, 0, 0), (0, 0, 0)),
    ("", (0, 0, 0), (0, 0, 0)),
    # Without the opening tag, robust finds nothing and authors takes the text.
    ("7", (0, 0, 0), (1, 0, 1)),
    ("7</answer>8", (0, 0, 0), (1, 0, 1)),
    ("</answer><answer>7", (1, 0, 1), (1, 0, 1)),
    ("\ud800<answer>7</answer>", (1, 0, 1), (1, 0, 1)),
]


@pytest.mark.parametrize(("completion", "robust", "authors"), COMPLETIONS)
def test_extraction_and_format(completion, robust, authors):
    assert scores(completion, "#### 7") == robust
    assert scores(completion, "#### 7", "authors") == authors


# Fragments of the format, for texts that nearly have it.
near_format = st.lists(st.sampled_from([*TAGS, "\n", "</think>\n<answer>", "7", "a", ""]), max_size=9).map("".join)


@given(near_format | near_format.map(lambda text: f"<think>{text}</answer>"))
def test_format_is_what_the_regular_expressions_say(text):
    body = r"(?:(?!</?think>|</?answer>).)*"
    robust = re.fullmatch(rf"<think>{body}</think>\n<answer>{body}</answer>\n?", text, re.DOTALL)
    assert score_completion(text, "7")["format"] == float(robust is not None)
    authors = re.search(r"^<think>.*?</think>\n<answer>.*?</answer>$", text, re.DOTALL)
    one_pair = text.count("<answer>") == text.count("</answer>") == 1
    assert score_completion(text, "7", "authors")["format"] == float(authors is not None and one_pair)


@given(
    st.text(max_size=60) | near_format | st.text("0123456789,.+-$% ½²", max_size=20).map(asked_format),
    st.text(max_size=30) | st.text("0123456789,.-# ", max_size=20),
    st.sampled_from(["robust", "authors"]),
)
def test_any_text_gets_zeros_and_ones(completion, answer, profile):
    assert set(scores(completion, answer, profile)) <= {0.0, 1.0}
    assert all(type(value) is float for value in score_completion(completion, answer, profile).values())


@given(st.decimals(-(10**9), 10**9, places=2), st.sampled_from(["{}", "{}.", "{} eggs", "{}%", " {} "]))
def test_a_number_is_read_exactly_however_it_is_written(number, form):
    assert read_number(form.format(f"{number:,}")) == read_number(form.format(f"{number:f}")) == number


def test_gold_answers_are_what_follows_the_mark():
    assert gold_answer("a\n#### 1,234\n") == gold_answer(" 1,234 ") == "1,234"
    assert gold_answer("a #### 1 #### 2") == "1"
    assert read_number("1,234") == Decimal(1234)


@pytest.mark.parametrize(("split", "size", "commas", "negatives"), [("train", 7473, 79, 3), ("test", 1319, 14, 2)])
def test_the_real_gold_answers(shared_data, split, size, commas, negatives):
    with (shared_data / "gsm8k" / f"{split}.jsonl").open(encoding="utf-8") as lines:
        answers = [json.loads(line)["answer"] for line in lines]
    golds = [gold_answer(answer) for answer in answers]
    assert len(golds) == size
    assert sum("," in gold for gold in golds) == commas
    assert sum(gold.startswith("-") for gold in golds) == negatives
    failures = 0
    for answer, gold in zip(answers, golds, strict=True):
        completion = asked_format(gold, thought=answer)
        assert scores(completion, answer) == scores(completion, gold) == (1, 1, 1)
        plain = gold.replace(",", "")
        assert scores(asked_format(plain), answer) == (1, 1, 1)
        # Whatever is written, it is not both: an integer there has digits only, and must equal the gold string.
        both = [scores(asked_format(text), answer, "authors") == (1, 1, 1) for text in (gold, plain, plain.strip("-"))]
        failures += not any(both)
    assert failures == commas + negatives
