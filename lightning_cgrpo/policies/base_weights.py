"""Base weights of adapters, which checkpoints leave out because loading the policy reads them again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.policy import Policy
from lightning_cgrpo.policies.sharding import is_sharded


def without_bases(module: nn.Module, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A module's state without base weights, and each base's fingerprint by the policy's name in the module.

    A sharded checkpoint keeps them.
    """
    left_out: set[str] = set()
    fingerprints: dict[str, str] = {}
    for policy_name, policy in module.named_modules():
        if not isinstance(policy, Policy) or is_sharded(policy):
            continue
        base = policy.base
        if base:
            left_out.update(f"{policy_name}.{weight}" for weight in base)
            fingerprints[policy_name] = fingerprint(base)
    rest = {name: tensor for name, tensor in state.items() if name not in left_out}
    return rest, fingerprints


def same_base(policy: Policy, expected: str, checkpoint: str) -> dict[str, Tensor]:
    """The policy's base weights, which a checkpoint lacks.

    Raises:
        UserError: their fingerprint isn't the `expected` one of the checkpoint.
    """
    base = {name: weight.detach() for name, weight in policy.base.items()}
    if not base:
        return base
    present = fingerprint(base)
    if present != expected:
        policy_name = getattr(policy, "name", type(policy).__name__)
        raise UserError(
            f"Expected the base model on which '{checkpoint}' trained its adapters, fingerprint {expected}, but "
            f"'{policy_name}' has {present}, try the model in the run's config.yaml."
        )
    return base


@torch.no_grad()
def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """12 hexadecimal digits of names, shapes and values; the same in each dtype that holds the values.

    Each row of a matrix counts with its hash, so that one wait brings all weights to the CPU.
    """
    digest = hashlib.sha256()
    contents = []
    for name, weight in sorted(weights.items()):
        content = weight.double() if weight.ndim < 2 else torch.hash_tensor(weight, dim=-1)
        contents.append(content.contiguous().view(-1).view(torch.uint8))
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
    digest.update(torch.cat(contents).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
