"""What is asked of a policy: a folder per task with the same files in each.

`prompts.py` makes or reads prompts, `task.py` scores answers into signals, `environment.py` steps an environment
(where there is one), `render.py` shows an answer to a person.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal, Signals

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Task(ABC):
    """Scores answers.

    Attributes:
        signals: the names of the signals that `score` returns and their kinds, known before any model is loaded.
        max_completion_tokens: the longest completion that the task can score; None for any.
    """

    signals: Mapping[str, SignalKind]
    max_completion_tokens: int | None = None

    @abstractmethod
    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """One signal ``[B, G]`` by name."""


class Renderer(ABC):
    """Shows answers to a person."""

    @abstractmethod
    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        """A picture of the answers to prompt `row` of the batch."""
