"""Traffic around the ego, and its policies' interface."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.scene_batch import SceneBatch


@dataclass(frozen=True, eq=False)
class TrafficRollouts(AgentTracks):
    """Tracks around the egos of R rows (candidates), which may share tracks."""

    of_row: Tensor  # [R] int64, the tracks of each row

    @classmethod
    def of(cls, tracks: AgentTracks, of_row: Tensor) -> TrafficRollouts:
        return cls(**vars(tracks), of_row=of_row)

    def by_row(self) -> AgentTracks:
        """Tracks ``[R, …]``."""
        columns = {part.name: getattr(self, part.name)[self.of_row] for part in fields(AgentTracks)}
        return AgentTracks(**columns)


class TrafficPolicy(Protocol):
    """Makes traffic for simulated candidates."""

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> TrafficRollouts:
        """Make traffic around R simulated egos ``states [R, 41, 11]`` in scenes ``scene [R]`` int64."""
