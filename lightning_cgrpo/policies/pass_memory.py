"""Tokens of a training pass, and answers generated at once, by the memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightning_cgrpo.core.distributed import gather_counts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy

FEATURE = 4
"""Bytes that a pass keeps of each token for an input or output of a linear layer, under bf16-mixed (3.0 to 4.0)."""
EXTRA_INPUTS = 4
"""Further states, as wide as a layer's input, that a pass keeps where layers recompute their activations."""
LOGITS = 3 * 2**28
"""Bytes of the logits of a chunk, their probabilities and their gradient."""
TRAINED = 5
"""Times the trained weights that training adds to them: gradients, DDP's copy of these, two moments, and casts."""
SHARE = 0.8
"""Share of the free memory that passes take; the rest is for the allocator's fragments."""
ROLLOUT = 0.25
"""Share of the free memory for answers that are generated at once, which stays theirs during training."""
LEAST_ROLLOUT = 2**28
"""Bytes that a rollout tries to take where training leaves nothing free."""
OCCUPYING = 2**14
"""Tokens of a pass that occupy a GPU, so that longer passes are hardly faster."""


def fitting_tokens(policy: object, trained: Iterable[Tensor], recomputes: bool | None = None) -> int | None:
    """The power of two of a pass's tokens that fits on every process's GPU; None where nothing is known. Collective.

    Known are causal language models of matrices, without images, under bf16-mixed on a GPU, where attention takes
    memory in proportion to the tokens. A power of two, so that equal machines choose equally though some bytes differ.

    Args:
        trained: weights that get gradients and moments, also those of a critic.
        recomputes: whether layers recompute their activations; by default as they do.
    """
    if not isinstance(policy, CausalLMPolicy) or policy.reads_images:
        return None
    device = policy.device
    free = free_bytes(device)
    if free is None or not torch.is_autocast_enabled(device.type):
        return None
    if any(weight.ndim > 2 for weight in policy.parameters()):  # experts, of which a token meets some
        return None
    for_training = TRAINED * sum(_local_bytes(weight) for weight in trained)
    room = SHARE * (free - for_training - LOGITS)
    tokens = max(int(room / bytes_per_token(policy, recomputes)), 1)
    fewest = min(gather_counts(tokens, device))
    return 1 << fewest.bit_length() - 1


def fitting_rollout(policy: CausalLMPolicy) -> int | None:
    """The power of two of bytes for answers at once that every process's GPU has; None on another device. Collective.

    Kept free are the weights' gradients and moments, also those that the first update makes.
    """
    free = free_bytes(policy.device)
    if free is None:
        return None
    for_training = TRAINED * sum(_local_bytes(weight) for weight in policy.parameters() if weight.requires_grad)
    room = max(int(ROLLOUT * (free - for_training)), LEAST_ROLLOUT)
    fewest = min(gather_counts(room, policy.device))
    return 1 << fewest.bit_length() - 1


def bytes_per_token(policy: CausalLMPolicy, recomputes: bool | None = None) -> float:
    """Bytes of activations that a training pass keeps for a token, under bf16-mixed; `recomputes` as above."""
    if recomputes is None:
        recomputes = policy.gradient_checkpointing
    # Inputs and outputs of all linear layers but the output layer.
    output = policy.network.get_output_embeddings()
    features = 0
    for name, module in policy.network.named_modules():
        weight = module._parameters.get("weight")  # its own, because layers with adapters show that of another
        is_linear = isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)
        if is_linear and module is not output and "lora_" not in name:
            features += sum(weight.shape)
    kept: float = FEATURE * features
    # Layers that recompute their activations keep only their inputs, and one of them at a time has the rest.
    layers = len(policy.layers())
    if recomputes and layers:
        states = 4 * policy.output_weight.shape[1] * (layers + EXTRA_INPUTS)  # float32
        kept = states + kept / layers  # the layer that is computed again
    # Packed rows compute logits in chunks; some models of padded rows compute all at once.
    if not policy.shares_prompts:
        kept += 12 * policy.vocabulary_size
    return kept


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still take of a GPU, or holds unused; None for another device."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _local_bytes(weight: Tensor) -> int:
    """Bytes of a weight, or of this process's share of a sharded one."""
    local = weight.to_local() if isinstance(weight, DTensor) else weight
    return local.numel() * local.element_size()
