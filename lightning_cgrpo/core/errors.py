"""Errors that tell the user what to change, shown in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


class UserError(ValueError):
    """Unusable input of the user; the message names the input and a remedy."""

    names_a_remedy = True


def names_a_remedy(error: BaseException) -> bool:
    """True for a `UserError`, and for the `InputError` of driving_scenes, which imports nothing from this package."""
    return getattr(error, "names_a_remedy", False) is True


class MissingExtraError(UserError):
    """A class needs an extra of the package that is not installed."""


def expect(holds: bool, name: str, what: str, value: object) -> None:
    """Raise a `ValueError` that `name` is not `what` unless `holds`.

    State `holds` positively, so that NaN fails.

    Example:
        >>> expect(0.5 > 0, "width", "above 0", 0.5)
        >>> expect(float("nan") > 0, "width", "above 0", float("nan"))
        Traceback (most recent call last):
        ValueError: Expected argument `width` to be above 0, but got nan.
    """
    if not holds:
        raise ValueError(f"Expected argument `{name}` to be {what}, but got {value}.")


def expect_instances(**arguments: object) -> None:
    """Raise a `UserError` for an argument that is a class in place of its instance."""
    for name, value in arguments.items():
        if isinstance(value, type):
            raise UserError(
                f"Expected argument `{name}` to be an instance, but got a class, try {value.__name__}(...)."
            )


def expect_kinds(**arguments: tuple[object, type]) -> None:
    """Raise a `UserError` for an argument that is no instance of its kind, such as a class's name or its settings."""
    expect_instances(**{name: value for name, (value, _) in arguments.items()})
    for name, (value, kind) in arguments.items():
        if isinstance(value, kind):
            continue
        got = f"the text '{value}'" if isinstance(value, str) else kind_of(value)
        remedy = f"{kind.__name__}(...)"
        if hasattr(kind, "__abstractmethods__") and kind.__abstractmethods__:
            remedy = f"an instance of a class of the kind {kind.__name__}"
        raise UserError(f"Expected argument `{name}` to be {_with_article(kind)}, but got {got}, try {remedy}.")


def kind_of(value: object) -> str:
    """What a value is, for errors.

    Example:
        >>> kind_of(3), kind_of([]), kind_of(dict), kind_of(None)
        ('an int', 'a list', 'the class dict', 'None')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return _with_article(type(value))


def _with_article(kind: type) -> str:
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {kind.__name__}"


def install_command(extra: str) -> str:
    """The pip command that installs an extra: of a checkout, or what an installed wheel requires; no index has it.

    It works in any directory, and keeps the checkout's exact versions.
    """
    root = Path(__file__).parents[2]
    if (root / "setup.py").is_file():
        here = Path() if Path.cwd() == root else root
        return f'pip install -c "{here / "constraints.txt"}" -e "{here}[{extra}]"'
    from importlib import metadata

    from packaging.requirements import Requirement

    needed: list[str] = []
    for text in metadata.requires("lightning_cgrpo") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and requirement.marker.evaluate({"extra": extra}):
            needed.append(f'"{requirement.name}{requirement.specifier}"')
    return "pip install " + " ".join(needed)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Text to append to an error, such as `` Did you mean 'goal'?``; empty without a similar known word."""
    names = list(known)
    # Words that differ in capitals: Adamw is AdamW, rather than Adam. Then words with similar letters.
    guesses = [name for name in names if name.lower() == word.lower()]
    guesses = guesses or difflib.get_close_matches(word, names, n=1)
    # Beginnings of long names score low, such as Lagrange for LagrangianCallback, and wandb for WandbLogger.
    start = word[: max(5, len(word) * 4 // 5)].lower()
    if not guesses and len(start) >= 5:
        guesses = [name for name in names if name.lower().startswith(start)]
    if not guesses or not guesses[0]:
        return ""
    return f" Did you mean '{guesses[0]}'?"


def first_line(error: BaseException) -> str:
    """First line of the error's message, printable and without the final period; the class name if empty."""
    text = valid_text(error).strip() or type(error).__name__
    return printable(text.split("\n")[0].rstrip("."))


def printable(value: object) -> str:
    r"""The text of any value, with escapes such as ``\x1b`` for characters that could steer a terminal."""
    text = valid_text(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def valid_text(value: object) -> str:
    r"""The text of any value in valid Unicode; a value that has no text gives the name of its class.

    Example:
        >>> valid_text("half a pair: \ud800")
        'half a pair: �'
    """
    try:
        text = str(value)
    except BaseException as error:
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
