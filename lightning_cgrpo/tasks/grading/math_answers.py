"""Answers to mathematical questions: numbers are compared exactly, other expressions by math-verify.

An expression may take forever, so `tasks/grading/process.py` calls this with limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from lightning_cgrpo.tasks.grading.numbers import UnreadableError, read_number, whole_number

TOLERANCE = Fraction(1, 10**6)
"""Relative difference between a number without an end, such as 1/3, and its rounded decimals."""


def is_right(completion: str, gold: str) -> bool | None:
    r"""True if a completion's last formula equals the gold answer; None where the gold answer can't be read.

    Example:
        >>> [is_right(r"\boxed{2/4}", gold) for gold in ("$0.5$", "3", "3 million")]
        [True, False, None]
    """
    from math_verify import verify

    expected = _read_gold(gold)
    if expected is None:
        return None
    answer = _read_completion(completion)
    if isinstance(answer, Fraction) and isinstance(expected, Fraction):
        return _equal_numbers(expected, answer)
    if _is_decimal_of(expected, answer):
        return True
    return bool(verify(_as_formulas(expected), _as_formulas(answer), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _read_gold(text: str) -> Any:
    """A number, or math-verify's formulas; None for a gold answer that can't be read."""
    try:
        number = read_number(_last_boxed(text) or text)
    except UnreadableError:
        return None
    if number is not None:
        return number
    if "$" not in text and r"\boxed" not in text:
        text = f"${text}$"
    formulas = _parse_formulas(text)
    return None if formulas == [] else formulas


def _read_completion(text: str) -> Any:
    """A number, or math-verify's formulas, empty if there is none; of the last box, else of the last formula."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = text.replace("\N{MINUS SIGN}", "-")  # which math-verify would skip outside of formulas
    boxed_first = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    boxed = _last_boxed(text)
    try:
        if boxed is not None:
            number = read_number(boxed)
            if number is not None:
                return number
            return _parse_formulas(rf"\boxed{{{boxed}}}", boxed_first)
        formulas = parse(text, boxed_first, parsing_timeout=None)
        if not formulas:
            return []
        number = read_number(whole_number(text, str(formulas[-1])))
    except UnreadableError:
        return []
    return _as_fraction(formulas) if number is None else number


def _last_boxed(text: str) -> str | None:
    r"""The text in the last ``\boxed{}``; None without one."""
    mark = r"\boxed{"
    start = text.rfind(mark)
    if start < 0:
        return None
    start += len(mark)
    depth = 1  # of the braces at a letter
    for end in range(start, len(text)):
        if text[end] == "{":
            depth += 1
        elif text[end] == "}":
            depth -= 1
        if depth == 0:
            return text[start:end]
    return text[start:]


def _parse_formulas(text: str, extraction: Sequence[Any] | None = None) -> Any:
    """A number, or math-verify's formulas."""
    from math_verify import parse

    options = {} if extraction is None else {"extraction_config": extraction}
    formulas: list[Any] = parse(text, parsing_timeout=None, **options)
    return _as_fraction(formulas)


def _as_fraction(formulas: list[Any]) -> Any:
    """The number, if the first of math-verify's formulas is a rational number; else the formulas."""
    if formulas and getattr(formulas[0], "is_Rational", False):
        return Fraction(int(formulas[0].p), int(formulas[0].q))
    return formulas


def _as_formulas(value: Any) -> Any:
    """The form of a value that math-verify compares."""
    if not isinstance(value, Fraction):
        return value
    from sympy import Rational

    return [Rational(value.numerator, value.denominator)]


def _is_decimal_of(gold: Any, answer: Any) -> bool:
    """True if the answer has the decimals of an irrational gold number."""
    if isinstance(gold, Fraction) or not isinstance(answer, Fraction):
        return False
    if not getattr(gold[0], "is_comparable", False):
        return False
    value = gold[0].evalf(30)
    return bool(abs(value - _as_formulas(answer)[0]) <= float(TOLERANCE) * abs(value))


def _equal_numbers(gold: Fraction, answer: Fraction) -> bool:
    """True for equal numbers, and for the decimals of a gold number that has no end."""
    if gold == answer:
        return True
    # Only a divisor other than 2 and 5 gives decimals without an end.
    rest = gold.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1 and abs(gold - answer) <= TOLERANCE * abs(gold)
