"""A reference that follows the policy."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO


class ReferenceSync(Callback):
    """Moves the KL term's reference towards the policy (TR-DPO, Gorbatovski et al., 2024).

    After every n-th update: reference <- alpha policy + (1 - alpha) reference. Checkpoints hold the reference.

    Args:
        every_n_updates: interval in updates.
        alpha: share of the policy, in (0, 1].

    Raises:
        UserError: (when training starts) no reference, or a reference sharing the policy's weights (LoRA).
    """

    def __init__(self, every_n_updates: int = 512, alpha: float = 0.6) -> None:
        expect(every_n_updates >= 1, "every_n_updates", "at least 1", every_n_updates)
        expect(0 < alpha <= 1, "alpha", "in (0, 1]", alpha)
        self.every_n_updates, self.alpha = every_n_updates, alpha

    def on_fit_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        if pl_module.reference is None:
            raise UserError("Expected a reference for ReferenceSync, but got none, try a kl_weight greater than 0.")
        if not isinstance(pl_module.reference, nn.Module):
            name = type(pl_module.policy).__name__
            raise UserError(
                f"Expected a reference with weights of its own for ReferenceSync, but got the {name} with its adapters "
                "off, try lora: null, which trains all weights, or no ReferenceSync."
            )

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self.every_n_updates:
            return
        assert isinstance(pl_module.reference, nn.Module)
        for reference, policy in zip(pl_module.reference.parameters(), pl_module.policy.parameters(), strict=True):
            reference.lerp_(policy, self.alpha)
        for buffer, policy_buffer in zip(pl_module.reference.buffers(), pl_module.policy.buffers(), strict=True):
            buffer.copy_(policy_buffer)  # such as moments of observations, in whose units the weights are
