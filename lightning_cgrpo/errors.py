"""Errors that tell the user what to change; the command line shows them as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something that the user gave can't be used: the message names it and says what to do."""


def expect(holds: bool, name: str, what: str, value: object) -> None:
    """Check an argument. State the condition positively, so that NaN fails it.

    Raises:
        ValueError: "Expected argument `name` to be `what`, but got `value`."
    """
    if not holds:
        raise ValueError(f"Expected argument `{name}` to be {what}, but got {value}.")


def installing(extra: str) -> str:
    """The command that installs the libraries of an extra."""
    # From a checkout: there is no release yet.
    return f'pip install -e ".[{extra}]"'


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an error: the known word most like a misspelled one, if any is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def first_line(error: BaseException) -> str:
    """Of its message, without a period; its class where it has none."""
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
