"""Numbers in texts and in LaTeX: read exactly, or refused where math-verify would read another number."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from lightning_cgrpo.tasks.grading.number_words import changes_number

LONGEST = 128
"""Characters of a number."""
LARGEST_POWER = 400

_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_OVER = r"\s?/\s?([0-9]+)"
_MIXED = re.compile(rf"([0-9]+)(?:\s+([0-9]+){_OVER}|\s*\\[dt]?frac\{{([0-9]+)\}}\{{([0-9]+)\}})")
"""A whole number and a fraction: "1 1/2", or with LaTeX's frac."""
_POWER = r"(?:[eE]|\s?(?:\\times|\\cdot|\u00d7|\u00b7|\*|x)\s?10\s?\^\s?)\{?([+-]?[0-9]+)\}?"
"""A power of ten after a decimal: the "e-05" of "1e-05", or "x 10^5"."""
_DECIMAL_OR_FRACTION = re.compile(rf"({_DECIMAL})(?:{_POWER}|{_OVER})?")
"""A decimal, also with a power of ten or over a whole number: "1,234.50", "1e-05", "1/2"."""
_SIGN = re.compile(r"([+-]?)\s?(?:\\?\$|[€£])?\s?([+-]?)")
"""A sign before or after that of a currency, both optional: "-$5", "$-5"; it also matches nothing."""
_SPACED = re.compile(r"^[+-]?\\?\$?[0-9]{1,3}(?:(?:\{,\}|\\[,;! ]|[_ \u202f\xa0])[0-9]{3})+(?![0-9]|\s?/)")
"""Digits in groups of three, apart by a space, an underscore or LaTeX's comma: "12 345", "12_345", "12{,}345"."""
_RAISED = re.compile("[0-9][\u207a\u207b\u00b9\u00b2\u00b3\u2070\u2074-\u2079]")
"""A digit and a raised digit or sign, which is an exponent: "10⁵"."""
_SKIPPED = re.compile(r"\s[0-9]|\*\*[0-9(]|\.\.|[.'\u2019\u2032][0-9]")
"""Continuations that change the number before them, and that math-verify would skip: "12 13", "10**3", "5'11"."""
_BEFORE = re.compile(r"[0-9)](?:\s?[*/^\u00d7\u00b7\u00b1\u2044\u2013]\s?|:)$")
"""Beside formulas, what makes another number of the number after it: "3 *", "2^", "5:"."""
_AFTER = re.compile(r"\s?\^|\s?[-+*/\u00d7\u00b7\u00b1\u2044\u2013]\s?[0-9(]|:[0-9]|\s?[\u00bc-\u00be\u2150-\u215f]")
"""Beside formulas, what makes another number of the number before it: "^", "* 3", ":5", " ½"."""
_WORD = re.compile(r"\$?\s*(?:\\text\{)?\s*([^\W\d_]+)")
"""The word after a number, also after a formula's end."""
_MAGNITUDE = re.compile(r"\s?[kmbt]n?\b", re.IGNORECASE)
"""After an amount of money: "$5M"."""
_EXPONENT = re.compile(r"(?:\^\{?-?[0-9]\}?|[\u00b2\u00b3])$")
"""The exponent of a unit: "cm^2", "m³"."""
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\{([^{}]*)\}")
_SHORT_UNITS = frozenset("cm mm km kg mg ml ft lb oz mi".split())  # noqa: SIM905
_LETTERS = frozenset("mshgl")
_FUNCTIONS = frozenset(
    "sqrt sin cos tan cot sec csc log exp pi theta alpha beta mod gcd lcm max min inf".split()  # noqa: SIM905
)
_CONNECTORS = frozenset({"and", "or", "to"})


class UnreadableError(ValueError):
    """A text that starts as a number, and is another number than math-verify would read."""


def read_number(text: str) -> Fraction | None:
    r"""The number that a text consists of, with an optional currency sign and words of a unit; None for other texts.

    Raises:
        UnreadableError: a text that starts with a number, which a word or an exponent changes: "3 million", "1e999999".

    Example:
        >>> [str(read_number(text)) for text in ("1 1/2", "-1e-05", "$1,234.50", "12 dollars", r"2\pi")]
        ['3/2', '-1/100000', '2469/2', '12', 'None']
    """
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if _RAISED.search(text):  # math-verify would skip the exponent
        raise UnreadableError(text)
    if len(text) > LONGEST:
        return None
    # 1. The sign and the digits.
    text = _normalize_text(text)
    sign = _SIGN.match(text)
    assert sign is not None  # it also matches nothing
    digits = _MIXED.match(text, sign.end()) or _DECIMAL_OR_FRACTION.match(text, sign.end())
    if digits is None:
        return None
    size = _read_digits(digits)
    if size is None:
        return None
    # 2. What stands after them must be nothing or a unit.
    rest = text[digits.end() :]
    money = sign[0].strip(" +-") != ""
    if _SKIPPED.match(rest) or (money and _MAGNITUDE.match(rest)):
        raise UnreadableError(text)
    _check_unit(rest)
    if not _is_unit(rest):
        # math-verify would read "1e-05 x" as another number.
        if re.search(r"\s|[eE]", digits[0]) and "\\" not in digits[0]:
            raise UnreadableError(text)
        return None
    return -size if "-" in sign.groups() else size


def _normalize_text(text: str) -> str:
    """The text without LaTeX's words and delimiters, without spaces in numbers, and with fractions spelled out."""
    text = _without_delimiters(_TEXT.sub(r" \1", text))
    text = "".join(map(_spell_fraction, text)).removesuffix(".").strip()
    text = text.replace("\N{FRACTION SLASH}", "/")
    return _SPACED.sub(lambda match: re.sub(r"[^+$0-9-]", "", match[0]), text)


def _read_digits(digits: re.Match[str]) -> Fraction | None:
    """The number that `_MIXED` or `_DECIMAL_OR_FRACTION` has matched, without a sign; None for a mixed number over 0.

    Raises:
        UnreadableError: the number is over 0, or has a power beyond `LARGEST_POWER`.
    """
    if digits.re is _MIXED:
        whole, over, under = (int(part) for part in digits.groups() if part is not None)
        return None if under == 0 else whole + Fraction(over, under)
    decimal, power_text, divisor_text = digits.groups()
    power = int(power_text or 0)
    divisor = int(divisor_text or 1)
    if abs(power) > LARGEST_POWER or divisor == 0:
        raise UnreadableError(digits.string)
    return Fraction(decimal.replace(",", "")) * Fraction(10) ** power / divisor


def _check_unit(text: str) -> None:
    """Refuse what stands after a number and makes another number of it, unless a connector such as "and" follows.

    Raises:
        UnreadableError: a word changes the number, or the number goes on, as in "6 ft 2 in" or "12_34".
    """
    words = _split_words(text)
    if not _CONNECTORS.isdisjoint(words):
        return
    if any(changes_number(word.strip(".,")) for word in words) or text.startswith("_"):
        raise UnreadableError(text)
    has_unit = any(map(_names_unit, words))
    has_other = not all(_names_unit(word) or word.isalpha() for word in words)
    if has_unit and has_other and text[0].isspace():
        raise UnreadableError(text)


def _is_unit(text: str) -> bool:
    """True if what stands after a number, and passes `_check_unit`, is nothing or words of a unit."""
    words = _split_words(text)
    if not words:
        return True
    if not text[0].isspace():  # "2x" is a product
        return False
    if not _CONNECTORS.isdisjoint(words) or any(word.casefold() in _FUNCTIONS for word in words):
        return False
    return any(map(_names_unit, words))


def _split_words(text: str) -> list[str]:
    """The words of a text without parentheses around them."""
    return [word.strip("()") for word in text.split()]


def _names_unit(word: str) -> bool:
    """True for a unit, also with an exponent, or a quotient of units: "cm^2", "km/h"; no single letter."""
    if word.casefold() in _FUNCTIONS:
        return False
    parts = _EXPONENT.sub("", word).split("/")
    if len(parts) == 1 and parts[0] in _LETTERS:
        return False
    return all(part in _SHORT_UNITS or part in _LETTERS or (len(part) > 2 and part.isalpha()) for part in parts)


def _spell_fraction(character: str) -> str:
    """The character, but " 1/2" for the fraction ½."""
    if not unicodedata.decomposition(character).startswith("<fraction>"):
        return character
    return " " + unicodedata.normalize("NFKC", character).replace("\N{FRACTION SLASH}", "/")


def _without_delimiters(text: str) -> str:
    """The text without the dollars or parentheses of LaTeX around it."""
    for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        is_longer = len(text) > len(start) + len(end)
        if is_longer and text.startswith(start) and text.endswith(end):
            inside = text[len(start) : len(text) - len(end)]
            if "$" not in inside:
                return inside.strip()
    return text


def whole_number(text: str, part: str) -> str:
    """The whole number of which math-verify took a part, such as "1e-05" for "1"; a formula such as "10^5" as it is.

    Raises:
        UnreadableError: the number goes on, as in "3 million" or "10-12".
    """
    taken = part.strip().rstrip(".")
    place = text.rfind(taken)
    # The number whose text holds the part.
    for pattern in (_MIXED, _DECIMAL_OR_FRACTION):
        for match in pattern.finditer(text):
            if place < match.start() or match.end() < place + len(taken):
                continue
            if _goes_on(text, match):
                raise UnreadableError(text[match.start() : match.end() + 20])
            before = text[: match.start()]
            sign = before[-1] if before.endswith(("+", "-")) else ""
            return sign + match[0]
    return part


def _goes_on(text: str, number: re.Match[str]) -> bool:
    """True if what stands beside a number in a text makes another number of it."""
    before, after = text[: number.start()], text[number.end() :]
    if _RAISED.match(text, number.end() - 1) or _SKIPPED.match(after):
        return True
    if _AFTER.match(after) or _BEFORE.search(before):
        return True
    word = _WORD.match(after)
    return word is not None and changes_number(word[1]) and word[1] not in _CONNECTORS
