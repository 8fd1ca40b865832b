"""Counter-based randomness: every draw is determined by (seed, stream, update, prompt index).

A resumed run needs no generator state, and the number of processes does not change the samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Stream(IntEnum):
    """Purpose of a draw; different streams draw different numbers."""

    PROMPTS = 0
    ORDER = 1
    ROLLOUT = 2
    MINIBATCHES = 3
    VALIDATION = 4
    TEST = 5
    INITIAL_RATES = 6
    PREDICT = 7
    REDRAW = 8
    CERTIFY = 9


def run_seed(seed: int | None = None) -> int:
    """`seed`, else the seed of `lightning.seed_everything`, else 0."""
    if seed is not None:
        return seed
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def generator(seed: int, stream: Stream, *counters: int) -> np.random.Generator:
    """A generator determined by its arguments, integers >= 0.

    Calls with one stream must give equally many counters: NumPy pads with zeros, so (1) and (1, 0) give one generator.
    """
    return np.random.default_rng((seed, int(stream), *counters))


def uniform(seed: int, stream: Stream, update: int, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1), float64 ``[B, *shape]`` on the CPU, from one generator per prompt of ``index [B]``."""
    rows = [generator(seed, stream, update, int(prompt)).random(shape) for prompt in index.tolist()]
    if not rows:
        return torch.zeros((0, *shape), dtype=torch.float64)
    return torch.from_numpy(np.stack(rows))


@contextmanager
def random_weights(seed: int) -> Iterator[None]:
    """Context: modules get random weights determined by `seed`, on the CPU, because a GPU draws other numbers.

    Global generators are left unchanged.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
