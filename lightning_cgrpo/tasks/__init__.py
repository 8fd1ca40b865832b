"""What is asked of a policy: a folder per task with the same files in each.

`prompts.py` makes or reads prompts, `task.py` scores answers into signals, `environment.py` steps an environment
(where there is one), `render.py` shows an answer to a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from lightning_cgrpo.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal


@runtime_checkable
class Task(Protocol):
    """Scores answers."""

    @property
    def signals(self) -> Mapping[str, SignalKind]:
        """The names of the signals that `score` returns, known before any model is loaded."""

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """One signal ``[B, G]`` by name."""
