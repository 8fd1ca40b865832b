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
            made = f"{value.__name__}(...)"
            raise UserError(f"Expected argument `{name}` to be an instance, but got a class, try {made}.")


def expect_kinds(**arguments: tuple[object, type]) -> None:
    """Raise a `UserError` for an argument that is no instance of its kind, such as a class's name or its settings."""
    expect_instances(**{name: value for name, (value, _) in arguments.items()})
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            got = f"the text '{value}'" if isinstance(value, str) else kind_of(value)
            abstract = hasattr(kind, "__abstractmethods__") and kind.__abstractmethods__
            made = f"an instance of a class of the kind {kind.__name__}" if abstract else f"{kind.__name__}(...)"
            raise UserError(f"Expected argument `{name}` to be {_a(kind)}, but got {got}, try {made}.")


def kind_of(value: object) -> str:
    """What a value is, for errors.

    Example:
        >>> kind_of(3), kind_of([]), kind_of(dict), kind_of(None)
        ('an int', 'a list', 'the class dict', 'None')
    """
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else _a(type(value))


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


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

    requirements = [Requirement(text) for text in metadata.requires("lightning_cgrpo") or ()]
    needed = [one for one in requirements if one.marker is not None and one.marker.evaluate({"extra": extra})]
    return "pip install " + " ".join(f'"{one.name}{one.specifier}"' for one in needed)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Text to append to an error, such as `` Did you mean 'goal'?``; empty without a similar known word."""
    words = list(known)
    same = [name for name in words if name.lower() == word.lower()]  # Adamw is AdamW, rather than Adam
    close = same or difflib.get_close_matches(word, words, n=1)
    # Beginnings of long names score low, such as Lagrange for LagrangianCallback, and wandb for WandbLogger.
    start = word[: max(5, len(word) * 4 // 5)].lower()
    begun = [name for name in words if len(start) >= 5 and name.lower().startswith(start)]
    guess = next(iter(close or begun), None)
    return f" Did you mean '{guess}'?" if guess else ""


def first_line(error: BaseException) -> str:
    """First line of the error's message, printable and without the final period; the class name if empty."""
    return printable((valid_text(error).strip() or type(error).__name__).split("\n")[0].rstrip("."))


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
