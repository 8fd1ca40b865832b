"""A tokenizer to which every number up to 99 is one token, so that a tiny model can learn to calculate with it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lightning_cgrpo.policies.tiny.text import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, TURN_START

# A tag, a number of one or two digits (never with the space before it: the same token in a sentence and in an
# equation), a word or signs with the space before them, line breaks, other space.
PIECES = r"</?(?:think|answer)>|[0-9]{1,2}| ?\p{L}+| ?[^\s\p{L}0-9<]+|<|\n+|\s+"
TWO_DIGITS = [f"{number:02}" for number in range(10, 100)]
# A tenth with its point, and what is between two coordinates, or two points, with the sign of what follows.
DECIMAL_PIECES = r"\.[0-9]|\], \[-?|,-?|\[-?| -|[0-9]{1,2}| ?\p{L}+|[^\s\p{L}0-9\[,]+\s?|\s+"
TENTHS = [f".{digit}" for digit in range(10)]


def train_number_tokenizer(
    texts: Sequence[str], vocabulary: int, decimals: bool = False, special: Sequence[str] = ()
) -> Any:
    """A byte-level BPE (any text can be written) over `PIECES`.

    Args:
        texts: what words are learned from.
        vocabulary: tokens at most: the special ones, 256 bytes, 90 numbers, and the rest for words and tags.
        decimals: tenths are tokens, too, over `DECIMAL_PIECES`: 12.3 is "12", ".3".
        special: further tokens that are no text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(DECIMAL_PIECES if decimals else PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    numbers = TWO_DIGITS + (TENTHS if decimals else [])
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(numbers),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *special],
        show_progress=False,
    )
    # The numbers don't compete with the words for a place: their merges follow the learned ones.
    tokenizer.train_from_iterator((re.sub(r"\.?[0-9]", "", text) for text in texts), trainer)
    state = json.loads(tokenizer.to_str())
    for number in numbers:
        state["model"]["vocab"][number] = len(state["model"]["vocab"])
        state["model"]["merges"].append(list(number))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
    )
