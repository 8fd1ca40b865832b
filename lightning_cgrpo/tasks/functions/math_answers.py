"""Answers to mathematical questions, compared by math-verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.core.errors import UserError, installing


def math_correct(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    r"""1 where a completion's last formula equals the gold answer, as expressions: fractions, sets, intervals, units.

    A reward function of `FunctionTask`, by its path ``lightning_cgrpo.tasks.functions.math_correct``; the extra
    ``math``. A completion's ``\boxed{}`` counts before other formulas. Timeouts are off, because their alarms fail in
    threads; `FunctionTask`'s `time_limit` bounds a batch.

    Args:
        completions: texts, or chats of one message.
        answer: column of gold answers: numbers, or LaTeX with or without dollars.

    Returns:
        1.0 or 0.0; None where the gold answer is no formula.

    Raises:
        UserError: math-verify is not installed.

    Example:
        >>> math_correct([r"So $x = \boxed{\frac{2}{4}}$.", "It is 3."], ["1/2", "$4$"])
        [1.0, 0.0]
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError as error:
        raise UserError(
            f"Expected math-verify to be installed for math_correct, but it is not, try {installing('math')}."
        ) from error

    boxed_first = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    golds: dict[str, Any] = {}
    correct: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        text = "" if gold is None else str(gold)
        if text not in golds:
            latex = text if "$" in text or r"\boxed" in text else f"${text}$"
            golds[text] = parse(latex, parsing_timeout=None)
        said = completion if isinstance(completion, str) else completion[-1]["content"]
        formula = parse(said, boxed_first, parsing_timeout=None)
        correct.append(float(verify(golds[text], formula, timeout_seconds=None)) if golds[text] else None)
    return correct
