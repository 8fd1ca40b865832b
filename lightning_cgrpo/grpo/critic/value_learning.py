"""Optimizer steps of a critic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_cgrpo.core.distributed import all_sum, rank_zero_warn, world
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.critic.critic import Critic
from lightning_cgrpo.grpo.minibatches import Share, micro_batches, minibatches, partition_units, put_rows
from lightning_cgrpo.policies.sharding import equal_passes, is_sharded, total_norm


@dataclass(frozen=True)
class ValueLearning:
    """Optimizer steps of a critic in an update.

    Args:
        epochs: passes over each rollout.
        minibatch_size: most units (steps or answers) per optimizer step, over all processes; None: all.
        micro_batch_size: units per pass on a process, for memory; None: all at once.
        clip: most that a value may move from its prediction before the update; None for no limit.
        max_grad_norm: None for no limit.
        warmup: first updates, in which only the critic learns; policy and multipliers stay.
    """

    epochs: int = 1
    minibatch_size: int | None = None
    micro_batch_size: int | None = None
    clip: float | None = None
    max_grad_norm: float | None = None
    warmup: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("minibatch_size", 1), ("micro_batch_size", 1), ("warmup", 0)):
            value = getattr(self, name)
            expect(value is None or value >= least, name, f"at least {least}", value)
        for name in ("clip", "max_grad_norm"):
            value = getattr(self, name)
            expect(value is None or value > 0, name, "greater than 0", value)


def predict(critic: Critic, examples: Examples, components: int, micro_batch_size: int | None) -> Tensor:
    """Values ``[N, J]`` or ``[N, T, J]`` of all examples, without gradients. Collective if the critic is sharded."""
    device = examples.actions.device
    dtype = torch.promote_types(next(critic.parameters()).dtype, torch.float32)
    values = torch.zeros(*examples.mask.shape, components, device=device, dtype=dtype)
    rows = torch.arange(len(examples), device=device)
    with torch.no_grad():
        for piece in equal_passes(critic, micro_batches(rows, micro_batch_size), device):
            if len(piece):
                put_rows(values, piece, critic(examples[piece]))
            elif is_sharded(critic):
                # Every process takes part in gathering the shards, also without examples.
                critic(critic.network.placeholder())
    return values


def learn_values(
    critic: Critic,
    examples: Examples,
    learning: ValueLearning,
    optimizer: Optimizer,
    group_size: int,
    seed: int,
    update: int,
) -> tuple[Tensor, int]:
    """Take all optimizer steps of an update. Collective.

    Returns this process's share of the mean loss, and the number of steps skipped for gradients that are not finite.

    Gradients are averaged here, and not by DistributedDataParallel, which would wait for the policy's.

    Args:
        examples: with targets ``returns``, ``values`` (predictions) and ``value_weights``, ``[N, J]`` or ``[N, T, J]``.
    """
    losses: list[Tensor] = []
    skipped = 0
    device = examples.actions.device
    share = Share.of(examples, group_size)
    for epoch in range(learning.epochs):
        # Each epoch cuts the units of all processes into minibatches.
        parts = partition_units(share, learning.minibatch_size, seed, update, epoch)
        for rows, scale in minibatches(share, parts, device):
            # Gradients of the minibatch, one pass after the other.
            optimizer.zero_grad()
            for piece in equal_passes(critic, micro_batches(rows, learning.micro_batch_size), device):
                if len(piece):
                    part = examples[piece]
                    loss = value_loss(critic(part), part, learning.clip) * scale
                    losses.append(loss.detach())
                    loss.backward()
                elif is_sharded(critic):
                    # Every process takes part in gathering the shards, also without examples.
                    (critic(critic.network.placeholder()).sum() * 0).backward()
            _average_gradients(critic)
            norm = total_norm(critic)
            # A step with a gradient that is not finite would end all learning.
            if not bool(norm.isfinite()):
                skipped += 1
                rank_zero_warn(
                    "The critic's gradient is not finite; its optimizer step is skipped, as are further such steps. "
                    "The tag critic/skipped_steps counts them."
                )
                continue
            if learning.max_grad_norm is not None:
                nn.utils.clip_grads_with_norm_(critic.parameters(), learning.max_grad_norm, norm)
            optimizer.step()
    optimizer.zero_grad()
    if not losses:
        return torch.zeros((), device=device), skipped
    return torch.stack(losses).sum() / learning.epochs, skipped


def value_loss(values: Tensor, examples: Examples, clip: float | None) -> Tensor:
    """Half the weighted squared error of all heads; clipped as in PPO's public code, by the larger of both errors."""
    returns = examples.targets["returns"]
    old_values = examples.targets["values"]
    weights = examples.targets["value_weights"]
    errors = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (clipped - returns).square())
    return 0.5 * (weights * torch.where(weights > 0, errors, 0)).sum()


def _average_gradients(critic: Critic) -> None:
    """Average the gradients over all processes; sharding averages those of a sharded critic. Collective."""
    _, processes = world()
    if processes == 1 or is_sharded(critic):
        return
    # A process without examples has no gradients, which count as 0.
    gradients: list[Tensor] = []
    for parameter in critic.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    # One message for all gradients.
    mean = all_sum(torch.cat([gradient.flatten() for gradient in gradients])) / processes
    means = mean.split([gradient.numel() for gradient in gradients])
    for gradient, gradient_mean in zip(gradients, means, strict=True):
        gradient.copy_(gradient_mean.view_as(gradient))
