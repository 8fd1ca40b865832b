"""Rollouts of texts by a policy's own weights, for tests."""

import torch

from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.samplers.generation import GenerationSampler

TEXTS = ["How many apples are left?", "Tom", "Anna reads 12 pages every day. How many in 5 days?"]


def groups(texts=TEXTS, index=None):
    return PromptGroups(torch.arange(len(texts)) if index is None else torch.tensor(index), {"prompt": list(texts)})


def noise_for(prompts, seed=0):
    return lambda *shape: uniform(seed, Stream.ROLLOUT, 0, prompts.index, shape)


def rolled(policy, length, group_size, prompts=None, **options):
    prompts = groups() if prompts is None else prompts
    return GenerationSampler(length, **options).rollout(policy, prompts, group_size, noise_for(prompts))


def same(one, other):
    assert torch.equal(one.actions, other.actions) and torch.equal(one.mask, other.mask)
    assert torch.equal(one.info["truncated"], other.info["truncated"])
    assert one.info.get("text") == other.info.get("text")
    assert (one.sampling_log_probs is None) == (other.sampling_log_probs is None)
    if one.sampling_log_probs is not None:
        torch.testing.assert_close(one.sampling_log_probs, other.sampling_log_probs, rtol=0, atol=1e-6)


def answers(rollouts, b):
    return [row[kept].tolist() for row, kept in zip(rollouts.actions[b], rollouts.mask[b], strict=True)]
