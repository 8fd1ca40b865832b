"""Base class of callbacks that set the module's weights."""

from __future__ import annotations

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO


class WeightSetter(Callback):
    """Sets the module's `weights` when training starts, and may change them after updates.

    Raises:
        UserError: (at setup) two such callbacks.
    """

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        setters = [type(c).__name__ for c in trainer.callbacks if isinstance(c, WeightSetter)]  # type: ignore[attr-defined]
        if len(setters) > 1:
            raise UserError(
                f"Expected one callback to set the weights of reward and constraints, but got {' and '.join(setters)}; "
                "give them the same name in the configuration, so that one replaces the other."
            )
        pl_module.has_weight_setter = True
