"""Signals of GSM8K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch

from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.tasks.completions import LENGTH_SIGNALS, check_max_completion_tokens, length_signals, texts
from lightning_cgrpo.tasks.gsm8k.scoring import Profile, score_completion
from lightning_cgrpo.tasks.task import Task


class GSM8KTask(Task):
    """Signals: ``correctness``, ``format``, ``integer``; ``length``, ``tokens``, ``truncated``.

    The paper maximizes brevity (``length``) and constrains the first three. A limit on tokens is a constraint on
    ``tokens`` with ``violated_above: 200``.

    Args:
        max_completion_tokens: the sampler's limit, which scales ``length`` to [-1, 0].
        profile: the rules of scoring, ``robust`` or ``authors``; see `scoring`.
    """

    signals: Mapping[str, SignalKind] = {
        "correctness": "indicator",
        "format": "indicator",
        "integer": "indicator",
        **LENGTH_SIGNALS,
    }

    def __init__(self, max_completion_tokens: int, profile: Profile = "robust") -> None:
        if profile not in get_args(Profile):
            raise ValueError(f"Expected argument `profile` to be one of {get_args(Profile)}, but got '{profile}'.")
        check_max_completion_tokens(max_completion_tokens)
        self.max_completion_tokens, self.profile = max_completion_tokens, profile

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        scores = [
            score_completion(text, answer, self.profile)
            for answer, group in zip(prompts.column("answer", "GSM8KTask"), texts(rollouts), strict=True)
            for text in group
        ]
        shape, device = rollouts.mask.shape[:2], rollouts.actions.device
        signals = length_signals(rollouts, self.max_completion_tokens)
        for name in ("correctness", "format", "integer"):
            value = torch.tensor([score[name] for score in scores], dtype=torch.float32, device=device)
            signals[name] = Signal(value.view(shape))
        return signals
