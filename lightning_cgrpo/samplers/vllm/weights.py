"""The policy's weights for vLLM: fingerprint, checkpoint, comparison."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.rollout import Rollouts
from lightning_cgrpo.samplers.vllm.requests import Turn

PROBE_TOKENS = 16
TOLERANCE = 0.5
"""Largest mean difference of log-probabilities in nats. bfloat16 rounding stays below 0.1, a wrong layer exceeds 1."""


@torch.no_grad()
def version(policy: CausalLMPolicy) -> str:
    """A fingerprint of the current weights; version counters would miss averaged weights swapped in for evaluation."""
    digest = hashlib.sha256()
    for name, parameter in policy.model.named_parameters():
        content = parameter if parameter.ndim < 2 else torch.hash_tensor(parameter, dim=-1)
        digest.update(name.encode())
        digest.update(content.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def checkpoint(policy: CausalLMPolicy, folder: str | None) -> Iterator[str]:
    """A temporary directory in `folder` (None: the system's) with the policy's weights, adapters merged in.

    Raises:
        FloatingPointError: a weight is not finite.
    """
    from transformers.utils import logging

    for name, parameter in policy.model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise FloatingPointError(
                f"Expected finite weights in '{policy.name}', but got NaN or infinity in {name}, because training "
                "diverged, try a smaller learning rate."
            )
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"Expected shared to be an existing folder, but got '{folder}', try creating the folder.")
    with tempfile.TemporaryDirectory(prefix="weights-", dir=folder) as directory:
        # A sharded policy is whole in a rollout, but transformers would save its shards.
        named = {name: parameter.detach() for name, parameter in policy.named_parameters()}
        weights = named if is_sharded(policy) else None
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            policy.save_pretrained(directory, merge=True, weights=weights)
        finally:
            if shown:
                logging.enable_progress_bar()
        yield directory


def check_agreement(policy: CausalLMPolicy, prompt: list[int], answer: Turn, where: str) -> None:
    """Raise an error if vLLM's log-probabilities of an answer differ from the policy's.

    vLLM ignores layers missing in the checkpoint.
    """
    ids, mask = policy.padded([prompt])
    actions = torch.tensor([[answer.tokens]], device=policy.device)
    rollouts = Rollouts(actions, torch.ones_like(actions, dtype=torch.bool), {"prompt_ids": ids, "prompt_mask": mask})
    with torch.no_grad():
        computed = policy(policy.examples(rollouts)).log_probs[0].double().cpu()
    difference = float((computed - torch.tensor(answer.log_probs, dtype=torch.float64)).abs().mean())
    if not math.isfinite(difference):
        raise FloatingPointError(
            f"Expected finite log-probabilities from {where} and '{policy.name}', but got NaN or infinity, because a "
            "half-precision model overflowed, try bfloat16 or float32 for it."
        )
    if difference > TOLERANCE:
        raise UserError(
            f"Expected {where} to agree with '{policy.name}', but got log-probabilities that differ by "
            f"{difference:.2g} per token after the weights were pushed, try serving the policy's model."
        )
