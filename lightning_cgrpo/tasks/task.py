"""Base classes of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_cgrpo.objective.composition import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal, Signals

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Task(ABC):
    """Scores answers.

    Attributes:
        signals: names and kinds of the signals that `score` returns.
        max_completion_tokens: longest completion to score; None for no limit.
    """

    signals: Mapping[str, SignalKind]
    max_completion_tokens: int | None = None

    @abstractmethod
    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """One signal by name, of answers ``[B, G]`` or of steps ``[B, G, T]``."""


class Renderer(ABC):
    """Shows answers to a person."""

    @abstractmethod
    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        """Draw the answers to prompt `row`."""
