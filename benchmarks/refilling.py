"""What it saves that waiting prompts take the place of ended answers, with answers of given lengths.

    python -m benchmarks.refilling MODEL        # a directory with config.json

With a `sampler.batch_size` below an update's answers, a rollout reads further prompts whenever a quarter of its answers
has ended. It is measured beside a rollout that waits for the longest answer of each batch: decoded steps, which a
GPU's host takes about equally long to launch, and CPU seconds on one thread in float32 with random weights. Both
decode the same answers. Lengths are lognormal, with the given deviation of their logarithm.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.policies.continuation import SharedContinuation
from lightning_cgrpo.samplers import transformers_engine
from lightning_cgrpo.samplers.answers import WaitingPrompts
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.token_choice import TokenChoice
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPTS, GROUP, PROMPT_TOKENS = 16, 8, 64
MEAN, LONGEST = 40, 160
"""Tokens of an answer."""
DEVIATIONS = (0.5, 1.0)
AT_ONCE = (16, 32, 64)
"""Answers."""

Lengths = NDArray[np.int64]  # [prompts, group]


def drawn(generator: np.random.Generator, deviation: float) -> Lengths:
    lengths = generator.lognormal(np.log(MEAN) - deviation**2 / 2, deviation, (PROMPTS, GROUP))
    return lengths.round().clip(1, LONGEST).astype(np.int64)


def rolled(policy: CausalLMPolicy, lengths: Lengths, at_once: int, refills: bool) -> tuple[int, float]:
    """Decoded steps and CPU seconds of a rollout with answers of these lengths."""
    last = torch.from_numpy(lengths.ravel() - 1 + LONGEST * np.arange(lengths.size))  # places of stop tokens
    stop, other = policy.stop_tokens[0], policy.stop_tokens[0] + 1
    steps = 0

    class Choice(TokenChoice):
        def __call__(self, logits: Tensor, draws: Tensor, place: Tensor, seen: Tensor | None) -> Tensor:
            super().__call__(logits, draws, place, seen)
            return torch.where(torch.isin(place, last), stop, other)

    def next_logits(continuation: SharedContinuation, kept: Tensor | None, tokens: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return of_tokens(continuation, kept, tokens)

    of_tokens = SharedContinuation.next
    inputs = policy.padded([[2 + row] * PROMPT_TOKENS for row in range(PROMPTS)])
    draws = torch.rand(PROMPTS, GROUP, LONGEST, dtype=torch.float64)
    engine = TransformersEngine()
    with ExitStack() as stack:
        stack.enter_context(patch.object(transformers_engine, "TokenChoice", Choice))
        stack.enter_context(patch.object(SharedContinuation, "next", next_logits))
        if not refills:
            stack.enter_context(patch.object(WaitingPrompts, "to_join", return_value=0))
        stack.enter_context(engine.session(policy))
        begun = time.process_time()
        rollouts = engine.generate(policy, inputs, GROUP, Sampling(LONGEST, batch_size=at_once), draws)
        spent = time.process_time() - begun
    assert rollouts.lengths.flatten().tolist() == lengths.ravel().tolist()
    return steps, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model), dtype=torch.float32)
    policy = CausalLMPolicy.from_model(model, make_tokenizer())
    rolled(policy, np.full((PROMPTS, GROUP), 4), 2 * GROUP, False)  # libraries are ready
    generator = np.random.default_rng(0)
    for deviation in DEVIATIONS:
        lengths = drawn(generator, deviation)
        print(f"deviation {deviation}: {lengths.mean():.0f} tokens an answer, the longest {lengths.max()}")
        for at_once in AT_ONCE:
            steps, seconds = rolled(policy, lengths, at_once, refills=False)
            fewer_steps, fewer_seconds = rolled(policy, lengths, at_once, refills=True)
            print(
                f"  {at_once} answers at once: steps {steps:,} and {fewer_steps:,} with refilling "
                f"({1 - fewer_steps / steps:.0%} less), CPU seconds {seconds:.1f} and {fewer_seconds:.1f} "
                f"({1 - fewer_seconds / seconds:.0%} less)"
            )


if __name__ == "__main__":
    main()
