"""Constrained GRPO in TRL's `GRPOTrainer`; needs TRL."""

from lightning_cgrpo.trl.lagrangian import Lagrangian

__all__ = ["Lagrangian"]
