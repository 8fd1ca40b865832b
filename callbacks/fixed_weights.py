"""Weights that the user chose, in the place of learned multipliers."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_cgrpo.callbacks.weights import WeightSetter
from lightning_cgrpo.errors import UserError, did_you_mean


class FixedWeights(WeightSetter):
    """Keeps the module's weights where they are put: linear scalarization.

    Any numbers will do, they are not normalized. Equals a `LagrangianCallback` whose controller is frozen at these
    weights, bit for bit.

    Args:
        weights: by ``reward`` and constraint, e.g. ``{reward: 1.0, lava: 0.1}``. A weight that isn't given is 0, the
            reward's 1.

    Raises:
        UserError: (when training starts) for a name that the objective doesn't have, or a weight that isn't finite.
    """

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.weights = {"reward": 1.0, **(weights or {})}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        names = pl_module.objective.weight_names
        for name, weight in self.weights.items():
            if name not in names:
                hint = did_you_mean(name, names)
                raise UserError(f"Expected the fixed weights to be of {names}, but got '{name}'.{hint}")
            if not math.isfinite(weight):
                raise UserError(f"Expected a finite weight for '{name}', but got {weight}.")

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        values = [self.weights.get(name, 0.0) for name in pl_module.objective.weight_names]
        pl_module.weights.copy_(torch.tensor(values, dtype=torch.float64))
