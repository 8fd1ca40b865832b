"""Base classes of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, Signals
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.settings.objects import Stated

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainerState:
    """Progress of training, named as in transformers.

    Args:
        global_step: updates so far.
        max_steps: updates of the whole run; -1 without a limit.
        epoch: passes over the prompts so far.
    """

    global_step: int = 0
    max_steps: int = -1
    epoch: int = 0


class Task(Stated, ABC):
    """Scores answers.

    Attributes:
        signals: names and kinds of the signals that `score` returns.
        max_completion_tokens: longest completion to score; None for no limit.
        trainer_state: set by the module before `score`.
    """

    signals: Mapping[str, SignalKind]
    max_completion_tokens: int | None = None
    trainer_state = TrainerState()

    @abstractmethod
    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        """One signal by name, of answers ``[B, G]`` or of steps ``[B, G, T]``."""

    def logged(self) -> dict[str, list[float]] | None:
        """Further metrics by name, of the answers scored since the last call; None if the task never has any."""
        return None


class Renderer(ABC):
    """Shows answers to a person."""

    @abstractmethod
    def render(self, prompts: PromptGroups, rollouts: Rollouts, signals: Signals, row: int) -> Figure:
        """Draw the answers to prompt `row`."""
