"""A driving model's answers to the test's scenes, outside a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from driving_scenes.source import SceneSource
from lightning_cgrpo import GenerationSampler, VisionLanguagePolicy
from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.modules.rollout_module import TEST_SPLITS
from lightning_cgrpo.tasks.driving.prompts import PromptFormat

FORM = PromptFormat(frames=1, height=64, width=64, system=False)
MOVING_FORM = replace(FORM, frames=2)
"""The form of the driver that names motion, whose answers are longer."""
TOKENS = {FORM: 80, MOVING_FORM: 96}
"""`max_new_tokens` of the configurations, which the noise of a test depends on."""


def test_prompts(scenes: SceneSource, count: int | None, form: PromptFormat = FORM) -> Iterator[PromptGroups]:
    """The prompts of `count` test scenes (None: of all), as `configs/navsim.yaml` has them."""
    data = NavsimDataModule(  # one training scene at least has to be asked for, and none is read
        scenes=scenes, form=form, train_prompts=1, val_prompts=1, test_prompts=count, eval_prompts=50
    )
    yield from data.test_dataloader()


class Driver:
    """A model with the seeded noise of a test.

    Args:
        model: a directory, or ``packaged:driver``.
        answers: to each prompt.
        form: of the prompts.
        temperature: 0.6 in `configs/navsim.yaml`.
    """

    def __init__(self, model: str, answers: int, form: PromptFormat = FORM, temperature: float = 0.6) -> None:
        self.policy = VisionLanguagePolicy(model, temperature=temperature)
        self.policy.load()
        self.policy.eval()
        self.answers, self.sampler = answers, GenerationSampler(max_new_tokens=TOKENS[form])

    @torch.no_grad()
    def __call__(self, prompts: PromptGroups, split: str = "test") -> Rollouts:
        def noise(*shape: int) -> torch.Tensor:
            return uniform(0, Stream.TEST, TEST_SPLITS.index(split), prompts.index, shape)

        return self.sampler.rollout(self.policy, prompts, self.answers, noise)
