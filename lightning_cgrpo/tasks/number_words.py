"""Words after a number that change it, so that they are no units."""

from __future__ import annotations

import re

_CHANGES = frozenset(
    """
    k ten hundred thousand million billion trillion quadrillion mln mio bn lakh crore grand dozen gross score
    half halve quarter third fourth fifth sixth seventh eighth ninth tenth hundredth thousandth millionth
    and or point plus minus times to negative squared cubed
    """.split()  # noqa: SIM905
)


def changes_number(word: str) -> bool:
    """True for a word that changes the number before it, or announces another number: "3 millions", "half-hours".

    Example:
        >>> [changes_number(word) for word in ("dozens", "Quarter", "half-hours", "dollars", "seconds")]
        [True, True, True, False, False]
    """
    parts = [part.casefold() for part in re.split(r"[-/]", word)]
    return any(part in _CHANGES or part.removesuffix("s") in _CHANGES for part in parts)
