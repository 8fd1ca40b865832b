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
    policies = {name: part for name, part in module.named_modules() if isinstance(part, Policy)}
    bases = {name: policy.base for name, policy in policies.items() if policy.base and not is_sharded(policy)}
    left_out = {f"{policy}.{name}" for policy, base in bases.items() for name in base}
    rest = {name: tensor for name, tensor in state.items() if name not in left_out}
    return rest, {policy: fingerprint(base) for policy, base in bases.items()}


def same_base(policy: Policy, expected: str, checkpoint: str) -> dict[str, Tensor]:
    """The policy's base weights, which a checkpoint lacks.

    Raises:
        UserError: their fingerprint isn't the `expected` one of the checkpoint.
    """
    base = {name: weight.detach() for name, weight in policy.base.items()}
    if base and (here := fingerprint(base)) != expected:
        raise UserError(
            f"Expected the base model on which '{checkpoint}' trained its adapters, fingerprint {expected}, but "
            f"'{getattr(policy, 'name', type(policy).__name__)}' has {here}, try the model in the run's config.yaml."
        )
    return base


@torch.no_grad()
def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """12 hexadecimal digits of names, shapes and values; the same in each dtype that holds the values.

    Each row of a matrix counts with its hash, so that one wait brings all weights to the CPU.
    """
    digest, contents = hashlib.sha256(), []
    for name, weight in sorted(weights.items()):
        content = weight.double() if weight.ndim < 2 else torch.hash_tensor(weight, dim=-1)
        contents.append(content.contiguous().view(-1).view(torch.uint8))
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
    digest.update(torch.cat(contents).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
