"""Signals of an answer to a GSM8K question: correct, well-formed, an integer.

The paper (GSM8K section) names these signals without rules. Profile ``robust``, the default, compares numbers. Profile
``authors`` compares strings, as an author's fork of the GDPO recipe does (https://github.com/rdesc/GDPO). With gold
answers containing a comma or a minus, no answer is then both correct and an integer. The 82 such training questions of
7,473 cap the integer rate of a correct policy at 0.9890.

Scoring takes linear time, because regular expressions see at most `MAX_NUMBER_LENGTH` characters.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, get_args

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.tasks.grading.number_words import changes_number

Profile = Literal["robust", "authors"]

GOLD_MARK = "####"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_NUMBER_LENGTH = 128
MAX_INTEGER_DIGITS = 32
MAX_UNIT_WORDS = 4

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"[+-]?{_DIGITS}")
_NUMBER = re.compile(rf"([+-]?)([$€£]\s?)?({_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)")
_MAGNITUDES = frozenset("k m b t".split())  # noqa: SIM905
"""Letters that multiply an amount of money, as in "$5M"; capital letters multiply any number."""
_IN_UNITS = "'\N{RIGHT SINGLE QUOTATION MARK}/°²³-"


def score_completion(completion: str, answer: str, profile: Profile = "robust") -> dict[str, float]:
    r"""Signals ``correctness``, ``format`` and ``integer`` of a completion, each 0.0 or 1.0.

    Args:
        answer: ends in ``#### <gold>``, or is the gold answer alone.
        profile: rules of scoring, see the module.

    Example:
        >>> score_completion("<think>600 + 634</think>\n<answer>1,234</answer>", "That makes 1234.\n#### 1234")
        {'correctness': 1.0, 'format': 1.0, 'integer': 1.0}
        >>> score_completion("<answer>$1,234.00</answer>", "1234")
        {'correctness': 1.0, 'format': 0.0, 'integer': 0.0}
        >>> score_completion("<answer>1,234</answer>", "1234", profile="authors")
        {'correctness': 0.0, 'format': 0.0, 'integer': 0.0}
    """
    expect(profile in get_args(Profile), "profile", f"one of {get_args(Profile)}", f"'{profile}'")
    gold = gold_answer(answer)
    if profile == "authors":
        text = _extract_answer(completion)
        correct = text == gold
        well_formed = _is_formatted_authors(completion)
        integer = text.isdigit()
    else:
        text = _extract_answer(completion) if "<answer>" in completion else ""
        number = read_number(text)
        correct = number is not None and number == read_number(gold)
        well_formed = _is_formatted(completion)
        integer = _is_integer(text)
    return {"correctness": float(correct), "format": float(well_formed), "integer": float(integer)}


def gold_answer(answer: str) -> str:
    r"""The text after ``####``, or the whole answer.

    Example:
        >>> gold_answer("She has 3 * 4 = <<3*4=12>>12 eggs.\n#### 12")
        '12'
    """
    if GOLD_MARK in answer:
        answer = answer.split(GOLD_MARK)[1]
    return answer.strip()


def read_number(text: str) -> Decimal | None:
    """The number that `text` consists of, or None.

    Allowed: a sign (also U+2212), a currency sign, commas between thousands, decimals, a % or up to four words of unit,
    and a final period.

    Example:
        >>> read_number("-$1,250.50 per week.")
        Decimal('-1250.50')
        >>> read_number("12,34") is read_number("3 or 4") is read_number("") is None
        True
    """
    text = text.strip()
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    match = _NUMBER.match(text.replace("\N{MINUS SIGN}", "-"))
    if match is None:
        return None
    unit = text[match.end() :].removesuffix(".").strip()
    sign, currency, digits = match.groups()
    if not _is_unit(unit) or unit in ("M", "B", "T") or (currency and unit.casefold() in _MAGNITUDES):
        return None
    return Decimal(sign + digits.replace(",", ""))


def _is_unit(text: str) -> bool:
    """True for what may follow a number: nothing, a %, or a few words of a unit."""
    if text in ("", "%"):
        return True
    words = text.split()
    return len(words) <= MAX_UNIT_WORDS and all(map(_is_unit_word, words))


def _is_unit_word(word: str) -> bool:
    # Not the \w of regular expressions, which contains ² and ½.
    starts_well = word[0].isalpha() or (word[0] in "/°" and len(word) > 1)
    goes_on_well = all(character.isalpha() or character in _IN_UNITS for character in word)
    return starts_well and goes_on_well and not changes_number(word)


def _is_integer(text: str) -> bool:
    # Twice the digits leave room for commas, and bound the matching.
    if len(text) > 2 * MAX_INTEGER_DIGITS or _INTEGER.fullmatch(text) is None:
        return False
    digits = sum(map(str.isdigit, text))
    return digits <= MAX_INTEGER_DIGITS


def _extract_answer(completion: str) -> str:
    """The text between the last ``<answer>`` (or the start) and the next ``</answer>`` (or the end)."""
    return completion.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _is_formatted(completion: str) -> bool:
    r"""Match ``<think>B</think>\n<answer>B</answer>\n?`` without tags in B."""
    return (
        all(completion.count(tag) == 1 for tag in TAGS)
        and completion.startswith("<think>")
        and "</think>\n<answer>" in completion
        and completion.removesuffix("\n").endswith("</answer>")
    )


def _is_formatted_authors(completion: str) -> bool:
    r"""Match ``^<think>.*?</think>\n<answer>.*?</answer>$`` (dot matches newline), one pair of answer tags."""
    middle = "</think>\n<answer>"
    start = completion.find(middle, len("<think>"))
    return (
        completion.startswith("<think>")
        and start >= 0
        # $ also matches before a final newline.
        and completion.removesuffix("\n").endswith("</answer>", start + len(middle))
        and completion.count("<answer>") == completion.count("</answer>") == 1
    )
