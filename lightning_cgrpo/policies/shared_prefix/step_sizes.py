"""Sizes of a step of generation: slots of answers, and the pages of their keys and values."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = {"cuda": 256}
"""Tokens of a page; CUDA's flash kernel takes multiples of 256."""
PAGE_ELSEWHERE = 16
LOGIT = 24
"""Bytes that a step takes for a logit: the logit, scaled, as probability, and cumulated in float64."""


@dataclass(frozen=True)
class StepSizes:
    """Sizes that determine the shapes of a step.

    Args:
        slots: answers at once.
        columns: most pages of an answer with its prompt.
        pages: pages of the pool, with one for slots without an answer.
    """

    slots: int
    columns: int
    pages: int
    page: int  # tokens

    @classmethod
    def of(
        cls, kind: str, answers: int, prompt: int, answer: int, vocabulary: int, token_bytes: int, memory: int | None
    ) -> StepSizes:
        """Sizes for `answers` at once, or for as many as fit.

        The pool holds all answers with the longest prompt and answer, if `memory` allows. Otherwise there are as many
        slots as answers with short prompts fit, and prompts wait for pages as well as for slots.

        Args:
            kind: of device.
            prompt: tokens of the longest prompt; the table has room for up to twice as long texts, so that most
                batches have equal shapes.
            answer: most tokens of an answer.
            token_bytes: of a token's keys and values in all layers.
            memory: most bytes; None for no limit.
        """
        page = page_size(kind)
        columns = 1 << (pages_of(prompt + answer, page) - 1).bit_length()
        if memory is None:
            return cls(answers, columns, answers * columns + 1, page)
        page_bytes = page * token_bytes
        slot_bytes = LOGIT * vocabulary
        # As many slots as answers fit, if their prompts take no page of their own.
        least = slot_bytes + pages_of(answer, page) * page_bytes
        slots = max(min(answers, memory // least), 1)
        # The rest of the memory holds pages.
        pages = (memory - slots * slot_bytes) // page_bytes
        pages = max(min(slots * columns, pages), 1)
        return cls(slots, columns, pages + 1, page)


def page_size(kind: str) -> int:
    """Tokens of a page on this kind of device."""
    return PAGE.get(kind, PAGE_ELSEWHERE)


def pages_of(tokens: int, size: int) -> int:
    """Pages of `size` tokens that hold this many."""
    return -(-tokens // size)
