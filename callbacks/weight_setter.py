"""Base class of the callbacks that set the weights of reward and constraints."""

from __future__ import annotations

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.callbacks.update_lines import shown_by_default
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO


class WeightSetter(Callback):
    """Sets the module's `weights` when training starts, and may change them after updates.

    With a plain `Trainer`, what it measures is printed (`UpdateLines`).

    Raises:
        UserError: (at setup) two such callbacks.
    """

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        setters = [type(callback).__name__ for callback in callbacks if isinstance(callback, WeightSetter)]
        if len(setters) > 1:
            raise UserError(
                f"Expected one callback to set the weights of reward and constraints, but got {' and '.join(setters)}; "
                "give them the same name in the configuration, so that one replaces the other."
            )
        pl_module.has_weight_setter = True
        if stage == "fit":
            callbacks.extend(shown_by_default(trainer))
