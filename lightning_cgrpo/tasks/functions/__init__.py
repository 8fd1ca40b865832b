"""Any prompts, scored by reward functions as TRL's trainers call them."""

from lightning_cgrpo.tasks.functions.reward_model import RewardModel
from lightning_cgrpo.tasks.functions.task import FunctionTask

__all__ = ["FunctionTask", "RewardModel"]
