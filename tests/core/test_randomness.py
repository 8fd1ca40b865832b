"""What is drawn depends on what it is for, and on nothing that was drawn before."""

from itertools import product

import numpy as np
import torch

from lightning_cgrpo.core.randomness import Stream, uniform


def draw(index: list[int], seed: int = 0, stream: Stream = Stream.ROLLOUT, update: int = 3) -> torch.Tensor:
    return uniform(seed, stream, update, torch.tensor(index, dtype=torch.int64), (4, 5))


def test_a_prompts_numbers_do_not_depend_on_its_batch() -> None:
    alone = {prompt: draw([prompt])[0] for prompt in (2, 7, 100_000)}
    together = draw([7, 100_000, 2])
    assert torch.equal(together, torch.stack([alone[7], alone[100_000], alone[2]]))
    # Nor on what was drawn in the meantime, nor on the global generators.
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert torch.equal(draw([2])[0], alone[2])


def test_every_number_makes_a_difference() -> None:
    drawn = [
        draw([index], seed, stream, update)[0]
        for seed, stream, update, index in product((0, 1), (Stream.ROLLOUT, Stream.VALIDATION), (0, 1), (0, 1))
    ]
    assert len({tuple(numbers.flatten().tolist()) for numbers in drawn}) == len(drawn) == 16


def test_streams_keep_their_numbers() -> None:
    """A changed number would change every run made before."""
    names = "PROMPTS, ORDER, ROLLOUT, MINIBATCHES, VALIDATION, TEST, INITIAL_RATES, PREDICT, REDRAW, CERTIFY"
    assert ", ".join(Stream.__members__) == names and [int(stream) for stream in Stream] == list(range(10))


def test_shape_type_and_range() -> None:
    numbers = draw(list(range(200)))
    assert numbers.shape == (200, 4, 5) and numbers.dtype == torch.float64
    assert 0 <= numbers.min() < 1e-2 and 1 - 1e-2 < numbers.max() < 1
    # 4000 uniform numbers: the mean is within 5 standard errors.
    assert abs(numbers.mean().item() - 0.5) < 5 / (12 * 4000) ** 0.5
    assert draw([]).shape == (0, 4, 5) and draw([]).dtype == torch.float64
