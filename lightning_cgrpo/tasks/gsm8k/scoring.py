"""Is an answer to a GSM8K question correct, well-formed, an integer?

The paper (GSM8K section) names these signals without giving their rules. Profile ``authors`` follows, bit by bit, the
rules in one author's public fork of the GDPO recipe (https://github.com/rdesc/GDPO). They compare strings, so to a
gold answer with a comma or a minus no answer is both correct and an integer: 82 of the 7,473 training questions, which
caps the integer rate of a policy that is always correct at .9890. Profile ``robust``, the default, compares numbers.

Everything takes time linear in the text, which a policy under training writes: no regular expression sees more of it
than `MAX_NUMBER_LENGTH`, and nothing converts digits to int (Python refuses more than 4,300).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, get_args

Profile = Literal["robust", "authors"]

GOLD_MARK = "####"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MAX_NUMBER_LENGTH = 128
"""Characters; a longer text is no number."""
MAX_INTEGER_DIGITS = 32
MAX_UNIT_WORDS = 4

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_INTEGER = re.compile(rf"[+-]?{_DIGITS}")
_NUMBER = re.compile(rf"([+-]?)(?:[$€£]\s?)?({_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)")
_IN_UNITS = "'\N{RIGHT SINGLE QUOTATION MARK}/°²³-"
# These change the number before them, or announce another one.
_NOT_UNITS = frozenset(
    {
        "k",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "half",
        "and",
        "or",
        "point",
        "plus",
        "minus",
        "times",
        "to",
    }
)


def score_completion(completion: str, answer: str, profile: Profile = "robust") -> dict[str, float]:
    r"""Score one completion.

    Args:
        completion: decoded without special tokens; a truncated one is scored on its text.
        answer: the record's answer, which ends in ``#### <gold>``, or the gold answer alone.
        profile: ``robust`` or ``authors``, see the module.

    Returns:
        ``correctness``, ``format`` and ``integer``, each 0.0 or 1.0.

    Raises:
        ValueError: if there is no such profile.

    Example:
        >>> score_completion("<think>600 + 634</think>\n<answer>1,234</answer>", "That makes 1234.\n#### 1234")
        {'correctness': 1.0, 'format': 1.0, 'integer': 1.0}
        >>> score_completion("<answer>$1,234.00</answer>", "1234")
        {'correctness': 1.0, 'format': 0.0, 'integer': 0.0}
        >>> score_completion("<answer>1,234</answer>", "1234", profile="authors")
        {'correctness': 0.0, 'format': 0.0, 'integer': 0.0}
    """
    gold = gold_answer(answer)
    if profile == "authors":
        text = _extract(completion)
        correct, well_formed, integer = text == gold, _is_formatted_authors(completion), text.isdigit()
    elif profile == "robust":
        text = _extract(completion) if "<answer>" in completion else ""
        number = read_number(text)
        correct = number is not None and number == read_number(gold)
        well_formed, integer = _is_formatted(completion), _is_integer(text)
    else:
        raise ValueError(f"Expected argument `profile` to be one of {get_args(Profile)}, but got '{profile}'.")
    return {"correctness": float(correct), "format": float(well_formed), "integer": float(integer)}


def gold_answer(answer: str) -> str:
    r"""What stands after the ``####`` of a record's answer, or all of it where there is none; commas are kept.

    Example:
        >>> gold_answer("She has 3 * 4 = <<3*4=12>>12 eggs.\n#### 12")
        '12'
    """
    return answer.split(GOLD_MARK)[1].strip() if GOLD_MARK in answer else answer.strip()


def read_number(text: str) -> Decimal | None:
    """The one number that `text` is, exactly, or None.

    It may have a sign (also U+2212), a currency sign before it, commas between thousands, decimals, a % or up to four
    words of a unit behind it, and a final period.

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
    if match is None or not _is_unit(text[match.end() :].removesuffix(".").strip()):
        return None
    sign, digits = match.groups()
    return Decimal(sign + digits.replace(",", ""))


def _is_unit(text: str) -> bool:
    words = text.split()
    return text in ("", "%") or (
        len(words) <= MAX_UNIT_WORDS
        # Not a regular expression's \w: to that ² and ½ are letters, and 18² is not 18 of anything.
        and all(word[0].isalpha() or (word[0] in "/°" and len(word) > 1) for word in words)
        and all(character.isalpha() or character in _IN_UNITS for word in words for character in word)
        and not any(word.casefold() in _NOT_UNITS for word in words)
    )


def _is_integer(text: str) -> bool:
    # The limit first: twice as many characters leave room for the commas, and bound the matching.
    short = len(text) <= 2 * MAX_INTEGER_DIGITS
    return short and _INTEGER.fullmatch(text) is not None and sum(map(str.isdigit, text)) <= MAX_INTEGER_DIGITS


def _extract(completion: str) -> str:
    """After the last ``<answer>``, or from the start; up to the next ``</answer>``, or the end."""
    return completion.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def _is_formatted(completion: str) -> bool:
    r"""Full match of ``<think>B</think>\n<answer>B</answer>\n?`` with no tag in B."""
    return (
        all(completion.count(tag) == 1 for tag in TAGS)
        and completion.startswith("<think>")
        and "</think>\n<answer>" in completion
        and completion.removesuffix("\n").endswith("</answer>")
    )


def _is_formatted_authors(completion: str) -> bool:
    r"""Match of ``^<think>.*?</think>\n<answer>.*?</answer>$`` (dot matches newline), and one pair of answer tags."""
    middle = "</think>\n<answer>"
    start = completion.find(middle, len("<think>"))
    return (
        completion.startswith("<think>")
        and start >= 0
        # A $ matches also before one final newline.
        and completion.removesuffix("\n").endswith("</answer>", start + len(middle))
        and completion.count("<answer>") == completion.count("</answer>") == 1
    )
