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

    expected = _gold(gold)
    if expected is None:
        return None
    said = _said(completion)
    if isinstance(said, Fraction) and isinstance(expected, Fraction):
        return _equal(expected, said)
    return _close(expected, said) or bool(verify(_formula(expected), _formula(said), timeout_seconds=None))


@lru_cache(maxsize=1024)
def _gold(text: str) -> Any:
    """A number, or math-verify's formulas; None for a gold answer that can't be read."""
    try:
        number = read_number(_last_boxed(text) or text)
    except UnreadableError:
        return None
    if number is not None:
        return number
    formulas = _parsed(text if "$" in text or r"\boxed" in text else f"${text}$")
    return None if formulas == [] else formulas


def _said(text: str) -> Any:
    """A number, or math-verify's formulas, empty if there is none; of the last box, else of the last formula."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = text.replace("\N{MINUS SIGN}", "-")  # which math-verify would skip outside of formulas
    boxed_first = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    boxed = _last_boxed(text)
    try:
        if boxed is not None:
            number = read_number(boxed)
            return _parsed(rf"\boxed{{{boxed}}}", boxed_first) if number is None else number
        formulas = parse(text, boxed_first, parsing_timeout=None)
        number = read_number(whole_number(text, str(formulas[-1]))) if formulas else None
    except UnreadableError:
        return []
    return _exact(formulas) if number is None else number


def _last_boxed(text: str) -> str | None:
    r"""The text in the last ``\boxed{}``; None without one."""
    mark = r"\boxed{"
    start = text.rfind(mark)
    if start < 0:
        return None
    depth, start = 1, start + len(mark)
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return text[start:]


def _parsed(text: str, extraction: Sequence[Any] | None = None) -> Any:
    """A number, or math-verify's formulas."""
    from math_verify import parse

    options = {} if extraction is None else {"extraction_config": extraction}
    formulas: list[Any] = parse(text, parsing_timeout=None, **options)
    return _exact(formulas)


def _exact(formulas: list[Any]) -> Any:
    if formulas and getattr(formulas[0], "is_Rational", False):
        return Fraction(int(formulas[0].p), int(formulas[0].q))
    return formulas


def _formula(value: Any) -> Any:
    """The form of a value that math-verify compares."""
    if not isinstance(value, Fraction):
        return value
    from sympy import Rational

    return [Rational(value.numerator, value.denominator)]


def _close(gold: Any, said: Any) -> bool:
    """True for the decimals `said` of an irrational number."""
    if isinstance(gold, Fraction) or not isinstance(said, Fraction) or not getattr(gold[0], "is_comparable", False):
        return False
    value = gold[0].evalf(30)
    return bool(abs(value - _formula(said)[0]) <= float(TOLERANCE) * abs(value))


def _equal(gold: Fraction, said: Fraction) -> bool:
    """Equal numbers; or the decimals `said` of a gold number that has no end."""
    if gold == said:
        return True
    rest = gold.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest != 1 and abs(gold - said) <= TOLERANCE * abs(gold)
