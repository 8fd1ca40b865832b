"""Ends of answers: at a stop token, or after a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError

if TYPE_CHECKING:
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.samplers.engine import Sampling

# Shapes: S states, the beginnings of the stop strings; V tokens in the vocabulary; r answers.


class Ends:
    """Tells, on the policy's device, which answers end with their next tokens.

    A token ends its answer if it is a stop token, or if its text completes a stop string, wherever the string began.
    Before `Sampling.min_new_tokens`, strings end no answer.

    Attributes:
        tokens: the stop tokens.
    """

    def __init__(self, policy: CausalLMPolicy, sampling: Sampling) -> None:
        self.sampling = sampling
        self.tokens = torch.tensor(policy.stop_tokens, device="cpu").to(policy.device, non_blocking=True)
        self._table: Tensor | None = None
        if sampling.stop:
            self._table = _table_of(policy, sampling.stop).to(policy.device, non_blocking=True)

    def start(self, answers: int) -> Tensor | None:
        """The state of matching stop strings, of new answers ``[r]``; None without strings."""
        return None if self._table is None else torch.zeros(answers, dtype=torch.int64, device=self.tokens.device)

    def __call__(self, chosen: Tensor, matched: Tensor | None, place: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read a token ``[r]`` of each answer.

        Args:
            matched: from `start`, or of the token before.
            place: ``[r]`` of the token, in its answer or among equally many places of each answer.

        Returns:
            ``[r]`` bool, the answers that end with the token, and what is matched now.
        """
        stopped = (chosen[:, None] == self.tokens).any(-1)  # `isin` sorts many tokens, for which the host waits
        if self._table is None or matched is None:
            return stopped, None
        read = self._table[matched, chosen].long()
        states = len(self._table)
        late = place % self.sampling.max_new_tokens + 1 >= self.sampling.min_new_tokens
        return stopped | ((read >= states) & late), read % states


def first_end(
    policy: CausalLMPolicy, tokens: Sequence[int], stop_tokens: Sequence[int], stop: tuple[str, ...], least: int
) -> int | None:
    """The number of an answer's tokens up to its end, for engines that answer elsewhere; None without an end.

    Args:
        stop: the stop strings.
        least: fewest tokens of an answer that a string ends.
    """
    ends = [place + 1 for place, token in enumerate(tokens) if token in stop_tokens][:1]
    if stop and tokens:
        ends += [length for length in _completed(_table_of(policy, stop), tokens) if length >= least][:1]
    return min(ends, default=None)


def _completed(table: Tensor, tokens: Sequence[int]) -> list[int]:
    """The lengths at which tokens complete a stop string."""
    states, lengths, matched = len(table), [], 0
    columns = table[:, torch.tensor(tokens, device="cpu")].T.tolist()
    for length, column in enumerate(columns, 1):
        if column[matched] >= states:
            lengths.append(length)
        matched = column[matched] % states
    return lengths


def _table_of(policy: CausalLMPolicy, stop: tuple[str, ...]) -> Tensor:
    """`_table` for a policy's tokens.

    Raises:
        UserError: the tokens can't spell a string.
    """
    vocabulary = len(policy.output_weight)
    table = _table(policy.tokenizer, vocabulary, stop)
    for text in stop:
        ids = policy.tokenizer(text, add_special_tokens=False).input_ids
        if not ids or max(ids) >= vocabulary or not _completed(table, ids):
            raise UserError(
                f"Expected stop strings that the tokens of '{policy.name}' spell, but got {text!r}, try a string that "
                "its tokenizer decodes unchanged."
            )
    return table


@lru_cache(maxsize=4)
def _table(tokenizer: Any, vocabulary: int, stop: tuple[str, ...]) -> Tensor:
    """The state after a token ``[S, V]`` int32, on the CPU; plus S if the token completes a string.

    Aho and Corasick's automaton (1975) over bytes: a state is the longest end of the text that begins a stop string.
    """
    # 1. The automaton: the state after a byte [S, 256], and whether the byte completes a string.
    strings = tuple(text.encode() for text in stop)
    beginnings = sorted({string[:size] for string in strings for size in range(len(string) + 1)}, key=len)
    number = {beginning: state for state, beginning in enumerate(beginnings)}
    after = np.zeros((len(number), 256), dtype=np.int32)
    completes = np.zeros(after.shape, dtype=bool)
    for beginning, state in number.items():
        for byte in set(b"".join(strings)):
            text = beginning + bytes([byte])
            after[state, byte] = next(number[text[first:]] for first in range(len(text) + 1) if text[first:] in number)
            completes[state, byte] = text.endswith(strings)
    # 2. All tokens at once, byte by byte; the longest tokens first, so that the unread ones are a slice.
    spelled = spellings(tokenizer, vocabulary)
    lengths = np.array([len(token) for token in spelled])
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    data = np.frombuffer(b"".join(spelled[token] for token in order), dtype=np.uint8)
    first = np.cumsum(ordered) - ordered
    states = np.repeat(np.arange(len(number), dtype=np.int32)[:, None], vocabulary, axis=1)
    completed = np.zeros(states.shape, dtype=bool)
    for place in range(int(ordered[0])):
        unread = int((ordered > place).sum())
        byte = data[first[:unread] + place]
        completed[:, :unread] |= completes[states[:, :unread], byte]
        states[:, :unread] = after[states[:, :unread], byte]
    # 3. Back in the order of the tokens.
    table = np.empty_like(states)
    table[:, order] = states + len(number) * completed
    return torch.from_numpy(table)


def spellings(tokenizer: Any, vocabulary: int) -> list[bytes]:
    """The bytes of each token in the middle of a text; none for tokens without a text.

    A token may hold a part of a letter, such as the first of two bytes of "é".
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
    added = {int(number): token.content for number, token in tokenizer.added_tokens_decoder.items()}
    spelled = [b""] * vocabulary
    for token, written in enumerate(tokenizer.convert_ids_to_tokens(range(min(vocabulary, len(tokenizer))))):
        if token in added:
            spelled[token] = added[token].encode()
        elif written is None:
            continue
        elif "ByteLevel" in decoder and all(letter in byte_of for letter in written):
            spelled[token] = bytes(byte_of[letter] for letter in written)
        elif len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
            spelled[token] = bytes.fromhex(written[3:5])
        else:
            text = tokenizer.convert_tokens_to_string(["a", written])
            spelled[token] = text.removeprefix("a").encode()
    return spelled
