"""Signals of GSM8K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch

from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.completions import LENGTH_SIGNALS, length_signals, texts
from lightning_cgrpo.tasks.gsm8k.scoring import Profile, score_completion
from lightning_cgrpo.tasks.task import Task


class GSM8KTask(Task):
    """Signals ``correctness``, ``format`` and ``integer``, constrained in the paper, and `length_signals`.

    Args:
        max_completion_tokens: the sampler's limit, which scales ``length`` to [-1, 0].
        profile: rules of scoring, ``robust`` or ``authors``, see `scoring`.
    """

    signals: Mapping[str, SignalKind] = {
        "correctness": "indicator",
        "format": "indicator",
        "integer": "indicator",
        **LENGTH_SIGNALS,
    }

    def __init__(self, max_completion_tokens: int, profile: Profile = "robust") -> None:
        expect(profile in get_args(Profile), "profile", f"one of {get_args(Profile)}", f"'{profile}'")
        expect(max_completion_tokens >= 1, "max_completion_tokens", "at least 1", max_completion_tokens)
        self.max_completion_tokens = max_completion_tokens
        self.profile = profile

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        scores = []  # of all answers, group by group
        for answer, group in zip(prompts.column("answer", "GSM8KTask"), texts(rollouts), strict=True):
            for text in group:
                scores.append(score_completion(text, answer, self.profile))
        shape = rollouts.mask.shape[:2]
        device = rollouts.actions.device
        signals = length_signals(rollouts, self.max_completion_tokens)
        for name in ("correctness", "format", "integer"):
            value = torch.tensor([score[name] for score in scores], dtype=torch.float32, device=device)
            signals[name] = Signal(value.view(shape))
        return signals
