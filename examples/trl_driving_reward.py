"""The NAVSIM score as a reward function of TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from driving_scenes.scene import Scene
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.tasks.driving.answers import POSE_INTERVAL, AnswerFormat
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.expert.pdm_closed import plan
from navsim_score.scorer import Scorer, Scores
from navsim_score.traffic.traffic import TrafficPolicy

NO_PLANS: Mapping[str, ExpertPlan] = MappingProxyType({})


class TrajectoryReward:
    """Scores completions with waypoints: ``GRPOTrainer(reward_funcs=[TrajectoryReward(scenes)], …)``.

    The data set needs the column ``scene`` with a name for each prompt. Malformed answers get 0.

    Args:
        scenes: by name; a mapping may build a scene when it is asked.
        plans: of the expert, by name, as `drop_in.cached_scene` gives; other scenes are planned once.
        answer: format of the waypoints.
        total: the reward ``[R]`` of scores, such as ``Scores.rewards`` or a `Dialect`.
        traffic: behavior of agents, by default log replay.
        human_filter: see `Scorer`.

    Example:
        >>> TrajectoryReward({})([], scene=[])
        []
    """

    __name__ = "navsim_score"  # the trainer logs rewards by this name

    def __init__(
        self,
        scenes: Mapping[str, Scene],
        plans: Mapping[str, ExpertPlan] = NO_PLANS,
        answer: AnswerFormat | None = None,
        total: Callable[[Scores], Tensor] = Scores.rewards,
        traffic: TrafficPolicy | None = None,
        human_filter: bool = False,
    ) -> None:
        self.scenes, self.plans = scenes, dict(plans)
        self.answer = AnswerFormat() if answer is None else answer
        self.total, self.traffic, self.human_filter = total, traffic, human_filter

    def __call__(self, completions: Sequence[Any], scene: Sequence[str] | None = None, **columns: Any) -> list[float]:
        """Rewards of completions (texts or chats), whose scenes are named by the column ``scene``.

        Raises:
            UserError: no column ``scene``, or an unknown scene.
        """
        if scene is None:
            raise UserError("Expected the data set to have a column 'scene' with the name of each prompt's scene.")
        unknown = sorted({name for name in scene if name not in self.scenes})
        if unknown:
            raise UserError(f"Expected known scenes, but got {unknown[:5]}.")
        if not completions:
            return []
        names = list(dict.fromkeys(scene))
        used = [self.scenes[name] for name in names]
        for name, one in zip(names, used, strict=True):
            if name not in self.plans:
                [self.plans[name]] = plan([one])
        plans = [self.plans[name] for name in names]
        scorer = Scorer(used, self.traffic, plans=plans, human_filter=self.human_filter)
        rows = torch.tensor([names.index(name) for name in scene])
        poses = self.answer.trajectories([_text(each) for each in completions], [self.scenes[name] for name in scene])
        scores = scorer(poses, rows, POSE_INTERVAL)
        rewards: list[float] = self.total(scores).nan_to_num(0).tolist()
        return rewards


def _text(completion: Any) -> str:
    """A completion's text; of a chat, the last message's."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
