"""Words after a number that change it, so that they are no units."""

from __future__ import annotations

import re

_CHANGES = frozenset(
    """
    k ten hundred thousand thou myriad mln mio bn mrd milliard lakh crore grand dozen doz dzn gross score
    half halve quarter third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth twentieth
    hundredth thousandth
    and or & point plus minus times to negative squared cubed
    """.split()  # noqa: SIM905
)
_LARGE = re.compile(r"[a-z]*illion(th)?s?")
"""Millions, billions, zillions, and their parts."""


def changes_number(word: str) -> bool:
    """True for a word that changes the number before it, or announces another number: "3 millions", "half-hours".

    Example:
        >>> [changes_number(word) for word in ("dozens", "Quarter", "half-hours", "billionths", "dollars", "seconds")]
        [True, True, True, True, False, False]
    """
    for part in re.split(r"[-/]", word.casefold()):
        if part in _CHANGES or part.removesuffix("s") in _CHANGES or _LARGE.fullmatch(part):
            return True
    return False
