"""What refilling ended answers' slots would save of decoding: an upper bound, from lengths of answers alone.

    python -m benchmarks.refilling MODEL        # a directory with config.json

Today `sampler.batch_size` answers are decoded at once, and the next prompts begin when the longest answer has ended;
ended answers leave the batch. With refilling, the next prompt would begin as soon as a group's slots are free. Prompts
are read once either way, so only decoded steps differ. A step of R answers is priced in two ways: all steps alike, as
where the host bounds a GPU's steps, and as measured here, in CPU seconds on one thread in float32 with random weights.
Lengths are lognormal, with the given deviation of their logarithm.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.limits import sample
from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy

PROMPTS, GROUP = 64, 8
MEAN, LONGEST = 150, 512
"""Tokens of an answer."""
DEVIATIONS = (0.0, 0.5, 1.0)
SLOTS = (64, 128, 256)
MEASURED = (1, 2, 4, 8, 16)
"""Prompts of the measured steps, each with a group of answers; costs between are interpolated."""
STEPS = 8
DRAWS = 50

Lengths = NDArray[np.int64]  # [prompts, group]
Cost = Callable[[Lengths], float]
"""Of steps with so many answers each."""


def running(lengths: Sequence[int]) -> Lengths:
    """Answers that each step decodes, of answers that begin together."""
    return np.array([sum(length > step for length in lengths) for step in range(max(lengths))])


def in_waves(lengths: Lengths, slots: int) -> Lengths:
    """Answers of each step, as decoded today."""
    at_once = slots // GROUP
    waves = [lengths[start : start + at_once].ravel() for start in range(0, len(lengths), at_once)]
    return np.concatenate([running(wave.tolist()) for wave in waves])


def refilled(lengths: Lengths, slots: int) -> Lengths:
    """Answers of each step, if a prompt begins whenever a group of slots is free."""
    waiting, left, decoded = list(lengths), np.zeros(0, dtype=np.int64), []
    while waiting or len(left):
        while waiting and len(left) + GROUP <= slots:
            left = np.concatenate([left, waiting.pop(0)])
        decoded.append(len(left))
        left = left[left > 1] - 1
    return np.array(decoded)


def drawn(generator: np.random.Generator, deviation: float) -> Lengths:
    lengths = generator.lognormal(np.log(MEAN) - deviation**2 / 2, deviation, (PROMPTS, GROUP))
    return lengths.round().clip(1, LONGEST).astype(np.int64)


def measured_cost(directory: str) -> Cost:
    """CPU seconds of steps, by the number of their answers."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    policy = CausalLMPolicy.from_model(model, make_tokenizer())

    def spent(prompts: int, length: int) -> float:
        begun = time.process_time()
        sample(policy, prompts, GROUP, length)
        return time.process_time() - begun

    seconds = []
    for prompts in MEASURED:
        long, short = (min(spent(prompts, length) for _ in range(2)) for length in (STEPS + 1, 1))
        seconds.append((long - short) / STEPS)
        print(f"a step of {prompts * GROUP} answers: {seconds[-1] * 1e3:.0f} ms")
    answers = np.array(MEASURED) * GROUP
    slope = (seconds[-1] - seconds[-2]) / (answers[-1] - answers[-2])

    def cost(decoded: Lengths) -> float:
        beyond = (decoded - answers[-1]).clip(0) * slope
        return float((np.interp(decoded, answers, seconds) + beyond).sum())

    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    costs: dict[str, Cost] = {"all steps alike": len, "as measured here": measured_cost(options.model)}
    generator = np.random.default_rng(0)
    for deviation in DEVIATIONS:
        every = [drawn(generator, deviation) for _ in range(DRAWS)]
        longest = np.mean([lengths.max() for lengths in every])
        mean = np.mean([lengths.mean() for lengths in every])
        print(f"deviation {deviation}: {mean:.0f} tokens an answer, the longest {longest:.0f}")
        for slots in SLOTS:
            today = [in_waves(lengths, slots) for lengths in every]
            then = [refilled(lengths, slots) for lengths in every]
            saved = {name: 1 - sum(map(cost, then)) / sum(map(cost, today)) for name, cost in costs.items()}
            print(f"  {slots} slots: " + ", ".join(f"{name} {share:.0%} less" for name, share in saved.items()))


if __name__ == "__main__":
    main()
