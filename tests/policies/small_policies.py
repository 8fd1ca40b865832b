"""Rollouts and policies with adapters, for the tests of policies."""

import torch

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy, LoRA

TEMPERATURE = 0.7
PROMPT_LENGTHS, ANSWER_LENGTHS = (5, 1, 3), ((4, 1, 6), (2, 6, 3), (1, 5, 5))


def ragged(seed=0, steps=8):
    """Rollouts of three prompts with three answers each, all of different lengths; no answer fills all columns."""
    draw = torch.Generator().manual_seed(seed)
    actions = torch.randint(3, 250, (3, 3, steps), generator=draw)
    mask = torch.arange(steps) < torch.tensor(ANSWER_LENGTHS)[..., None]
    ids = torch.randint(3, 250, (3, 6), generator=draw)  # a column more than the longest prompt
    prompt_mask = torch.arange(6) >= 6 - torch.tensor(PROMPT_LENGTHS)[:, None]
    return Rollouts(actions * mask, mask, {"prompt_ids": ids * prompt_mask, "prompt_mask": prompt_mask})


def with_lora(directory, **options):
    policy = CausalLMPolicy(str(directory), dtype="float64", lora=LoRA(rank=4, alpha=16), **options)
    policy.load()
    return policy


def perturb(policy):
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
