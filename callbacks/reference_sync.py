"""A reference that follows the policy."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from lightning_cgrpo.errors import UserError


class ReferenceSync(Callback):
    """Moves the reference of the KL term towards the policy, by its weights (TR-DPO, Gorbatovski et al., 2024).

    After every n-th update: reference <- alpha policy + (1 - alpha) reference. With alpha = 1 it is the policy of the
    last n-th update. The reference is in the checkpoints, so a resumed run goes on with it.

    Args:
        every_n_updates: how often.
        alpha: share of the policy, in (0, 1].

    Raises:
        UserError: (when training starts) if there is no reference, or it has no weights of its own: with LoRA it is
            the policy with its adapters off.
    """

    def __init__(self, every_n_updates: int = 512, alpha: float = 0.6) -> None:
        if every_n_updates < 1:
            raise ValueError(f"Expected argument `every_n_updates` to be at least 1, but got {every_n_updates}.")
        if not 0 < alpha <= 1:
            raise ValueError(f"Expected argument `alpha` to be in (0, 1], but got {alpha}.")
        self.every_n_updates, self.alpha = every_n_updates, alpha

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        if pl_module.reference is None:
            raise UserError("Expected a reference for ReferenceSync, but got none, try a kl_weight greater than 0.")
        if not isinstance(pl_module.reference, nn.Module):
            name = type(pl_module.policy).__name__
            raise UserError(
                f"Expected a reference with weights of its own for ReferenceSync, but got the {name} with its adapters "
                "off, try lora: null, which trains all weights, or no ReferenceSync."
            )

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % self.every_n_updates:
            return
        for reference, policy in zip(pl_module.reference.parameters(), pl_module.policy.parameters(), strict=True):
            reference.lerp_(policy, self.alpha)
