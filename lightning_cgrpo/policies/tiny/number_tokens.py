"""A tokenizer with one token for every number up to 99."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.policies.tiny.text import byte_pairs, chat_tokenizer

# A tag, a number of one or two digits (without the space before it, to be the same token in sentences and equations),
# a word or signs with the space before them, line breaks, other space.
PIECES = r"</?(?:think|answer)>|[0-9]{1,2}| ?\p{L}+| ?[^\s\p{L}0-9<]+|<|\n+|\s+"
TWO_DIGITS = [f"{number:02}" for number in range(10, 100)]
# A tenth with its point, and separators of coordinates and points with the next sign.
DECIMAL_PIECES = r"\.[0-9]|\], \[-?|,-?|\[-?| -|[0-9]{1,2}| ?\p{L}+|[^\s\p{L}0-9\[,]+\s?|\s+"
TENTHS = [f".{digit}" for digit in range(10)]


def train_number_tokenizer(
    texts: Sequence[str], vocabulary: int, decimals: bool = False, special: Sequence[str] = ()
) -> Any:
    """Train a byte-level BPE with a token for each number from 10 to 99.

    Args:
        vocabulary: tokens at most, including 256 bytes and 90 numbers.
        decimals: make ".0" to ".9" tokens too: 12.3 is "12", ".3".
    """
    from tokenizers import Tokenizer

    numbers = TWO_DIGITS
    pieces = PIECES
    if decimals:
        numbers = TWO_DIGITS + TENTHS
        pieces = DECIMAL_PIECES
    # Numbers do not compete with words for a place, because their merges follow the learned merges.
    words = (re.sub(r"\.?[0-9]", "", text) for text in texts)
    learned = byte_pairs(words, pieces, vocabulary - len(numbers), special)
    state = json.loads(learned.to_str())
    for number in numbers:
        state["model"]["vocab"][number] = len(state["model"]["vocab"])
        state["model"]["merges"].append(list(number))
    return chat_tokenizer(Tokenizer.from_str(json.dumps(state)))
