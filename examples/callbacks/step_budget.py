"""A budget of environment steps, in which samplers of other authors are compared."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer

from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO, UpdateOutput


class StepBudget(Callback):
    """Ends training with the update in which all sampled steps reach a budget; a resumed run counts on.

    The tag ``rollout/total_steps`` has the steps of all processes so far, those of redrawn groups too. `max_steps` of
    the trainer counts updates, and still ends the run: -1 leaves the end to the budget.

    Args:
        steps: of environments, or tokens of completions.
    """

    def __init__(self, steps: int) -> None:
        expect(steps >= 1, "steps", "at least 1", steps)
        self.steps, self.taken = steps, 0

    def setup(self, trainer: Trainer, pl_module: ConstrainedGRPO, stage: str) -> None:
        if stage == "fit" and trainer.max_steps == -1:
            trainer.fit_loop.max_epochs = -1  # Lightning would end the run after 1,000 epochs.

    def on_train_start(self, trainer: Trainer, pl_module: ConstrainedGRPO) -> None:
        trainer.should_stop |= self.taken >= self.steps  # a finished run was resumed

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: ConstrainedGRPO, outputs: UpdateOutput, batch: Any, batch_idx: int
    ) -> None:
        self.taken += int(all_sum(outputs["steps"]))
        for logger in trainer.loggers:
            logger.log_metrics({"rollout/total_steps": float(self.taken)}, step=trainer.global_step - 1)
        if self.taken >= self.steps:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]
