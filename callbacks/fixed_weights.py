"""Constant weights of reward and constraints."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import Trainer

from lightning_cgrpo.callbacks.weight_setter import WeightSetter
from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO


class FixedWeights(WeightSetter):
    """Keeps the weights constant, unnormalized: linear scalarization.

    Args:
        weights: by constraint and ``reward`` (default 1): ``{lava: 0.1, battery: 0.1}``. Weight 0 only measures.

    Raises:
        UserError: (at setup) a missing, negative or non-finite weight, or an unknown name.
    """

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.weights = {"reward": 1.0, **(weights or {})}

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        names = pl_module.objective.weight_names
        for name, weight in self.weights.items():
            if name not in names:
                hint = did_you_mean(name, names)
                raise UserError(f"Expected the fixed weights to be of {names}, but got '{name}'.{hint}")
            if not 0 <= weight < math.inf:
                raise UserError(
                    f"Expected the weight of '{name}' to be finite and at least 0, but got {weight}; costs enter the "
                    "sum with a minus already."
                )
        missing = [name for name in names if name not in self.weights]
        if missing and stage == "fit":
            raise UserError(
                f"Expected FixedWeights to have a weight for each constraint, but got none for {', '.join(missing)}, "
                f"try --callbacks.multipliers.weights.{missing[0]}=0.1, or 0 to measure {missing[0]} without enforcing."
            )

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        values = [self.weights[name] for name in pl_module.objective.weight_names]
        pl_module.weights.copy_(torch.tensor(values, dtype=torch.float64))
