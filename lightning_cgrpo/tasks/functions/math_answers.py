"""A reward function for answers to mathematical questions."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from lightning_cgrpo.core.errors import UserError, install_command
from lightning_cgrpo.tasks.functions.values import Values
from lightning_cgrpo.tasks.grading.grader import GraderError, grader_of


def math_correct(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> Values:
    r"""1 where a completion's last formula equals the gold answer, as expressions: fractions, sets, intervals, units.

    A reward function of `FunctionTask`, by its path ``lightning_cgrpo.tasks.functions.math_correct``; the extra
    ``math``. A completion's last ``\boxed{}`` counts before other formulas. Numbers are exact: ``1 1/2``, ``1e-05``,
    ``1,234`` and ``12 dollars`` are read as numbers. A number without an end, such as 1/3, also equals its decimals
    from six digits on. math-verify compares other expressions, to six decimals.

    Another process grades. An expression that needs more than 0.9 CPU seconds or 1 GB there, such as
    ``9^{9^{9}}``, is a fault: its value is None, the tag ``faults/…`` counts it, and the run goes on.

    Args:
        completions: texts, or chats of one message.
        answer: column of gold answers: numbers, or LaTeX with or without dollars.

    Returns:
        1.0 or 0.0; None where the gold answer can't be read, such as "3 million", NaN or a text without a formula, and
        where an expression reached a limit.

    Raises:
        UserError: math-verify is not installed.

    Example:
        >>> math_correct([r"So $x = \boxed{\frac{2}{4}}$.", "It is 3."], ["1/2", "$4$"])
        [1.0, 0.0]
    """
    if find_spec("math_verify") is None:
        raise UserError(
            f"Expected math-verify to be installed for math_correct, but it is not, try {install_command('math')}."
        )
    grader = grader_of(os.getpid())
    values = Values()
    for completion, gold in zip(completions, answer, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        try:
            if _is_number_or_text(gold) and grader.reads(str(gold)):
                values.append(float(grader.is_right(text, str(gold))))
            else:
                values.append(None)
        except GraderError:
            values.append_fault()
    return values


def _is_number_or_text(gold: Any) -> bool:
    if gold is None or isinstance(gold, bool):
        return False
    return not isinstance(gold, float) or math.isfinite(gold)
