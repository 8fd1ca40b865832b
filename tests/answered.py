"""Answers that nobody sampled."""

import torch

from lightning_cgrpo.core.rollout import Rollouts


def answered(texts):
    """Rollouts of B prompts with G texts each, of a token each."""
    mask = torch.ones(len(texts), len(texts[0]), 1, dtype=torch.bool)
    return Rollouts(mask.long(), mask, {}, info={"text": texts, "truncated": ~mask[..., 0]})
