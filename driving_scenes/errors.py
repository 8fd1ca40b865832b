"""Errors that name an unusable input and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An unusable scene, file or option; the message names it and a remedy."""

    names_a_remedy = True
    """Commands show such an error in one line, without a traceback."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Text to append to an error, such as `` Did you mean 'goal'?``; empty without a similar known word."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def first_line(error: BaseException) -> str:
    """First line of the error's message, printable and without the final period; the class name if empty."""
    message = str(error).strip() or type(error).__name__
    return printable(message.split("\n")[0].rstrip("."))


def printable(text: str) -> str:
    r"""The text, with escapes such as ``\x1b`` for characters that could steer a terminal."""
    escaped = ""
    for letter in text:
        if not letter.isprintable():
            letter = letter.encode("unicode_escape").decode()
        escaped += letter
    return escaped
