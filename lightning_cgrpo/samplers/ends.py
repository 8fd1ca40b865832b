"""Ends of answers: at a stop token, or after a stop string."""

from __future__ import annotations

from collections.abc import Container, Sequence
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
            self._table = _checked_table(policy, sampling.stop).to(policy.device, non_blocking=True)

    def start(self, answers: int) -> Tensor | None:
        """The state of matching stop strings, of new answers ``[r]``; None without strings."""
        if self._table is None:
            return None
        return torch.zeros(answers, dtype=torch.int64, device=self.tokens.device)

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
        entry = self._table[matched, chosen].long()
        states = len(self._table)
        completes = entry >= states
        length = place % self.sampling.max_new_tokens + 1
        is_long_enough = length >= self.sampling.min_new_tokens
        return stopped | (completes & is_long_enough), entry % states


def first_end(
    policy: CausalLMPolicy, tokens: Sequence[int], stop_tokens: Sequence[int], stop: tuple[str, ...], least: int
) -> int | None:
    """The number of an answer's tokens up to its end, for engines that answer elsewhere; None without an end.

    Args:
        stop: the stop strings.
        least: fewest tokens of an answer that a string ends.
    """
    ends = [length for length, token in enumerate(tokens, 1) if token in stop_tokens]
    if stop and tokens:
        completed = _completed_lengths(_checked_table(policy, stop), tokens)
        ends += [length for length in completed if length >= least]
    return min(ends, default=None)


def _completed_lengths(table: Tensor, tokens: Sequence[int]) -> list[int]:
    """The lengths at which tokens complete a stop string."""
    states = len(table)
    lengths = []
    matched = 0
    columns = table[:, torch.tensor(tokens, device="cpu")].T.tolist()  # [tokens, S]
    for length, column in enumerate(columns, 1):
        if column[matched] >= states:
            lengths.append(length)
        matched = column[matched] % states
    return lengths


def _checked_table(policy: CausalLMPolicy, stop: tuple[str, ...]) -> Tensor:
    """`_build_table` for a policy's tokens.

    Raises:
        UserError: the tokens can't spell a string.
    """
    vocabulary = len(policy.output_weight)
    table = _build_table(policy.tokenizer, vocabulary, stop)
    for text in stop:
        ids = policy.tokenizer(text, add_special_tokens=False).input_ids
        if not ids or max(ids) >= vocabulary or not _completed_lengths(table, ids):
            raise UserError(
                f"Expected stop strings that the tokens of '{policy.name}' spell, but got {text!r}, try a string that "
                "its tokenizer decodes unchanged."
            )
    return table


@lru_cache(maxsize=4)
def _build_table(tokenizer: Any, vocabulary: int, stop: tuple[str, ...]) -> Tensor:
    """The state after a token ``[S, V]`` int32, on the CPU; plus S if the token completes a string.

    Aho and Corasick's automaton (1975) over bytes: a state is the longest end of the text that begins a stop string.
    """
    strings = tuple(text.encode() for text in stop)
    state_of = _number_beginnings(strings)
    # 1. The automaton: the state after a byte [S, 256], and whether the byte completes a string.
    after = np.zeros((len(state_of), 256), dtype=np.int32)
    completes = np.zeros(after.shape, dtype=bool)
    for beginning, state in state_of.items():
        for byte in set(b"".join(strings)):
            text = beginning + bytes([byte])
            after[state, byte] = state_of[_longest_beginning(text, state_of)]
            completes[state, byte] = text.endswith(strings)
    # 2. The bytes of all tokens, the longest tokens first, so that the tokens with bytes to read are a slice.
    spelled = spellings(tokenizer, vocabulary)
    lengths = np.array([len(token) for token in spelled])
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    data = np.frombuffer(b"".join(spelled[token] for token in order), dtype=np.uint8)
    first = np.cumsum(ordered) - ordered  # [V] place of each token's first byte
    # 3. From every state, read all tokens at once, byte by byte.
    states = np.repeat(np.arange(len(state_of), dtype=np.int32)[:, None], vocabulary, axis=1)  # [S, V]
    completed = np.zeros(states.shape, dtype=bool)
    for place in range(int(ordered[0])):
        unread = int((ordered > place).sum())
        byte = data[first[:unread] + place]
        completed[:, :unread] |= completes[states[:, :unread], byte]
        states[:, :unread] = after[states[:, :unread], byte]
    # 4. Back in the order of the tokens.
    table = np.empty_like(states)
    table[:, order] = states + len(state_of) * completed
    return torch.from_numpy(table)


def _number_beginnings(strings: tuple[bytes, ...]) -> dict[bytes, int]:
    """A state for each beginning of the stop strings; state 0 is the empty beginning."""
    beginnings = set()
    for string in strings:
        for size in range(len(string) + 1):
            beginnings.add(string[:size])
    return {beginning: state for state, beginning in enumerate(sorted(beginnings, key=len))}


def _longest_beginning(text: bytes, beginnings: Container[bytes]) -> bytes:
    """The longest end of a text that begins a stop string; the empty text begins all of them."""
    while text not in beginnings:
        text = text[1:]
    return text


def spellings(tokenizer: Any, vocabulary: int) -> list[bytes]:
    """The bytes of each token in the middle of a text; none for tokens without a text.

    A token may hold a part of a letter, such as the first of two bytes of "é".
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = repr(getattr(backend, "decoder", None))
    added = {int(number): token.content for number, token in tokenizer.added_tokens_decoder.items()}
    spelled = [b""] * vocabulary
    numbers = range(min(vocabulary, len(tokenizer)))
    for token, written in enumerate(tokenizer.convert_ids_to_tokens(numbers)):
        if token in added:
            spelled[token] = added[token].encode()
        elif written is None:
            continue
        elif "ByteLevel" in decoder and all(letter in byte_of for letter in written):
            spelled[token] = bytes(byte_of[letter] for letter in written)
        elif len(written) == 6 and written.startswith("<0x") and written.endswith(">"):
            # A single byte, as SentencePiece writes it.
            spelled[token] = bytes.fromhex(written[3:5])
        else:
            # After a letter, because a tokenizer may drop the space at the start of a text.
            text = tokenizer.convert_tokens_to_string(["a", written])
            spelled[token] = text.removeprefix("a").encode()
    return spelled
