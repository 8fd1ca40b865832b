"""The policy's weights for vLLM: fingerprint, names, comparison."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightning_cgrpo.core.distributed import gather_objects
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.base_weights import fingerprint
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.policies.written_models import written_tensors
from lightning_cgrpo.samplers.vllm.requests import ROUNDING, Turn

PROBE_TOKENS = 16
TOLERANCE = 0.5
"""Largest mean difference of log-probabilities in nats. bfloat16 rounding stays below 0.1, a wrong layer exceeds 1."""

GROWTH = 4.0
"""Largest ratio of two mean differences over `PROBE_TOKENS` that rounding explains."""
OTHER_DTYPE = 5e-3
"""Mean difference in nats of a server in half precision; float32 gives 1e-5."""


def served_dtype(client: JSONClient) -> torch.dtype | None:
    """The dtype of a server's weights; None if the server does not tell."""
    match = re.search(r"\bdtype=torch\.(\w+)", str(client.get("/server_info").get("vllm_config")))
    return None if match is None else getattr(torch, match[1], None)


def weights_version(policy: CausalLMPolicy) -> str:
    """The weights' fingerprint, of weights in shards a digest of all shards' fingerprints. Collective.

    Version counters would miss averaged weights swapped in for evaluation.
    """
    weights = dict(policy.model.named_parameters())
    shards = {name: weight.to_local() for name, weight in weights.items() if isinstance(weight, DTensor)}
    if not shards:
        return fingerprint(weights)
    by_process = gather_objects(fingerprint({**weights, **shards}))
    return hashlib.sha256("".join(by_process).encode()).hexdigest()[:12]


def named_weights(policy: CausalLMPolicy) -> dict[str, Tensor]:
    """Weights by their names in a checkpoint, adapters merged in, see `written_tensors`."""
    # A sharded policy is whole in a rollout, but the model's state would be its shards.
    named = {name.removeprefix("model."): parameter.detach() for name, parameter in policy.named_parameters()}
    return written_tensors(policy.model, named if is_sharded(policy) else None)


def check_agreement(
    policy: CausalLMPolicy,
    prompt: list[int],
    answer: Turn,
    where: str,
    first_gap: float | None,
    in_float32: Callable[[], bool],
) -> float:
    """Compare vLLM's log-probabilities of an answer with the policy's; returns the mean difference in nats.

    vLLM ignores layers missing in the checkpoint.

    Args:
        first_gap: after the first push; None for the first push.
        in_float32: tells the server's dtype.

    Raises:
        UserError: the difference exceeds `TOLERANCE`, has grown since the first push, or is not rounding.
    """
    # 1. The mean difference over the answer's tokens.
    ids = torch.tensor([prompt], device=policy.device)
    actions = torch.tensor([[answer.tokens]], device=policy.device)
    inputs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)}
    rollouts = Rollouts(actions, torch.ones_like(actions, dtype=torch.bool), inputs)
    with torch.no_grad():
        computed = policy(policy.examples(rollouts)).log_probs[0].double().cpu()
    served = torch.tensor(answer.log_probs, dtype=torch.float64)
    gap = float((computed - served).abs().mean())
    if not math.isfinite(gap):
        raise FloatingPointError(
            f"Expected finite log-probabilities from '{policy.name}', but got NaN or infinity, because training "
            "diverged or a half-precision model overflowed, try a smaller learning rate, or bfloat16 or float32."
        )
    # 2. Another model, or a layer that was never pushed.
    if gap > TOLERANCE:
        raise UserError(
            f"Expected {where} to agree with '{policy.name}', but got log-probabilities that differ by "
            f"{gap:.2g} per token after the weights were pushed, try serving the policy's model."
        )
    # 3. At the first push, half precision explains a difference, but a server in float32 must agree up to rounding.
    if first_gap is None and gap > OTHER_DTYPE and policy.output_weight.dtype is torch.float32:
        if in_float32():
            first_gap = ROUNDING
        else:
            rank_zero_warn(
                f"Log-probabilities of {where} differ by {gap:.2g} per token from the policy's in float32, because the "
                "server has another dtype. The loss corrects it, and `vllm serve` with --dtype float32 avoids it."
            )
    # 4. The difference must not exceed rounding, or grow beyond that of the first push.
    if first_gap is not None and gap > GROWTH * first_gap + ROUNDING:
        raise UserError(
            f"Expected {where} to take all pushed weights, but log-probabilities differ by {gap:.2g} per token, more "
            "than rounding or the first push explains, because a layer keeps its old weights, such as a tied output "
            "layer in vLLM's CPU build, try a model whose tie_word_embeddings is false, or a server on a GPU."
        )
    return gap
