"""Any prompts, scored by reward functions as in TRL."""

from lightning_cgrpo.tasks.functions.math_answers import math_correct
from lightning_cgrpo.tasks.functions.reward_model import RewardModel
from lightning_cgrpo.tasks.functions.task import FunctionTask

__all__ = ["FunctionTask", "RewardModel", "math_correct"]
