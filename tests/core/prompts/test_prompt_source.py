"""Prompts that a policy can't tell apart have the same identity, and others have another."""

import numpy as np
import pytest
import torch

from lightning_cgrpo.core.prompts.fingerprints import identities
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts


def numbers(**columns):
    size = len(next(iter(columns.values())))
    return identities(PromptGroups(torch.arange(size), columns)).tolist()


def asked(text, image=None):
    parts = [] if image is None else [{"type": "image", "image": image}]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


DARK, BRIGHT = np.zeros((2, 3, 3), dtype=np.uint8), np.full((2, 3, 3), 9, dtype=np.uint8)


@pytest.mark.parametrize(
    "prompts",
    [
        ["a", "b", "a"],
        [asked("a"), asked("b"), asked("a")],
        [asked("a", DARK), asked("a", BRIGHT), asked("a", DARK.copy())],
        [asked("a", DARK), asked("a", DARK.reshape(3, 2, 3)), asked("a", DARK)],
        ["half \ud800", "half \udfff", "half \ud800"],
    ],
)
def test_texts_and_images_count_and_no_other_column_does(prompts):
    first, second, third = numbers(prompt=prompts, answer=[1, 1, 2])
    assert first == third != second and first == float(int(first)) < 2**53


def test_prompts_of_equal_tokens_are_repeats():
    rendered = Rollouts(
        torch.zeros(4, 1, 1),
        torch.ones(4, 1, 1, dtype=torch.bool),
        {
            "prompt_ids": torch.tensor([[0, 5], [5, 0], [5, 0], [5, 5]]),
            "prompt_mask": torch.tensor([[0, 1], [1, 0], [1, 0], [1, 1]]),
        },
    )
    asks = [asked("a"), "a ", asked("a", DARK), "b"]
    one, other, *different = identities(PromptGroups(torch.arange(4), {"prompt": asks}), rendered).tolist()
    assert one == other and len({one, *different}) == 3


def test_worlds_are_their_seed_and_options():
    seeds = torch.tensor([5, 5, 5, 6])
    options = [{"shift": 1, "goal": [0, 1]}, {"goal": [0, 1], "shift": 1}, None, None]
    first, second, *others = numbers(seed=seeds, options=options)
    assert first == second and len({first, *others}) == 3
    grids = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert len(set(numbers(lava=grids))) == 2
    assert identities(PromptGroups(torch.tensor([3, 4]))).tolist() == [3, 4], "nothing tells them apart"
