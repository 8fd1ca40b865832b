"""What conversations pay for reading all earlier tokens again at each turn, on one CPU core.

    python -m benchmarks.rereading

Rolls out the calculator's conversations, and prints the share of the CPU time in which later turns read the tokens
before them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo import CausalLMPolicy, ConversationSampler
from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.continuation import SharedContinuation
from lightning_cgrpo.tasks.calculator.problems import drawn

PROMPTS, GROUP_SIZE, ROLLOUTS = 16, 8, 5


class Reading:
    """CPU seconds of reading prompts, in first turns and in later ones."""

    def __init__(self) -> None:
        self.seconds = {"first": 0.0, "later": 0.0}

    @contextmanager
    def measured(self) -> Iterator[None]:
        read = SharedContinuation.read

        def timed(continuation: SharedContinuation) -> Tensor:
            # In later turns, each conversation is a prompt of its own.
            group_size = continuation.decoding.slots.grid[1]
            started = time.process_time()
            logits = read(continuation)
            self.seconds["first" if group_size == GROUP_SIZE else "later"] += time.process_time() - started
            return logits

        with patch.object(SharedContinuation, "read", timed):
            yield


def main() -> None:
    torch.set_num_threads(1)
    policy = CausalLMPolicy("packaged:calculator")
    policy.load()
    sampler = ConversationSampler(160, ["lightning_cgrpo.tasks.calculator.calculator"], max_turns=4, time_limit=None)
    draw = np.random.default_rng(0)
    chats = [[{"role": "user", "content": drawn(draw).question}] for _ in range(PROMPTS * ROLLOUTS)]
    reading = Reading()
    started = time.process_time()
    tokens = 0
    with reading.measured():
        for update in range(ROLLOUTS):
            index = torch.arange(update * PROMPTS, (update + 1) * PROMPTS)
            prompts = PromptGroups(index, {"prompt": [chats[number] for number in index.tolist()]})

            def noise(*shape: int, index: Tensor = index, update: int = update) -> Tensor:
                return uniform(0, Stream.ROLLOUT, update, index, shape)

            tokens += int(sampler.rollout(policy, prompts, GROUP_SIZE, noise).mask.sum())
    whole = time.process_time() - started
    print(f"{tokens} tokens of the policy in {whole:.1f} CPU s: {tokens / whole:.0f} a second")
    print(
        f"reading prompts {reading.seconds['first'] / whole:.1%}, reading again {reading.seconds['later'] / whole:.1%}"
    )


if __name__ == "__main__":
    main()
