"""A policy whose answers differ in length, a client for a server in vLLM's protocol, and the ways to push weights."""

import copy
import functools

import pytest
import torch

from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.vllm.folder_push import FolderPush
from tests.samplers.fake_transfer import FilePush, GlooPush

TEXTS = ["How many apples are left?", "Tom", "Anna reads 12 pages every day."]
GROUP_SIZE = 3
LENGTH = 8


def make_policy(directory, **options):
    """A policy of the caller's own, read and compared with transformers' once."""
    return copy.deepcopy(_made(str(directory), **options))


@functools.cache
def _made(directory, **options):
    """Peaked enough that answers differ in length, with many stop tokens."""
    policy = CausalLMPolicy(directory, temperature=0.8, **options)
    policy.load()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(6)
    policy.stop_tokens = tuple(sorted({*policy.stop_tokens, *range(40, 100)}))
    return policy


WAYS = {"folder": (None, FolderPush), "nccl": ("nccl", GlooPush), "ipc": ("ipc", FilePush)}
"""A server's backend, and the push."""
every_way = pytest.mark.parametrize("way", WAYS, indirect=True)


def draws(update=0, rows=(0, 1, 2), group_size=GROUP_SIZE, length=LENGTH):
    return uniform(0, Stream.ROLLOUT, update, torch.tensor(rows), (group_size, length))


def generate(engine, policy, sampling=None, rows=(0, 1, 2), update=0):
    prompts = policy.read_prompts([TEXTS[row] for row in rows])
    with engine.session(policy):
        return engine.generate(policy, prompts, GROUP_SIZE, sampling or Sampling(LENGTH), draws(update, rows))


def log_probs_of(policy, rollouts):
    with torch.no_grad():
        return policy(policy.examples(rollouts)).log_probs.view(rollouts.mask.shape)


def check_log_probs(policy, rollouts):
    """The reported ones are the policy's."""
    exact = log_probs_of(policy, rollouts)[rollouts.mask]
    torch.testing.assert_close(rollouts.sampling_log_probs[rollouts.mask].to(exact), exact, rtol=0, atol=1e-4)


def change(policy, by=1e-3):
    with torch.no_grad():
        policy.model.model.norm.weight.add_(by)
