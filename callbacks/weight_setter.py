"""What sets the module's weights, of which there can be one."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.errors import UserError


class WeightSetter(Callback):
    """A callback that writes the module's `weights` when training starts, and may change them after any update.

    Raises:
        UserError: (when training is set up) if there is another.
    """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        setters = [type(c).__name__ for c in trainer.callbacks if isinstance(c, WeightSetter)]  # type: ignore[attr-defined]
        if len(setters) > 1:
            raise UserError(
                f"Expected one callback to set the weights of reward and constraints, but got {' and '.join(setters)}; "
                "give them the same name in the configuration, so that one replaces the other."
            )
        pl_module.has_weight_setter = True
