"""Dialects of the NAVSIM score: versions whose numbers must not be compared (docs/navsim_score_scenes.md §19)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from driving_scenes.errors import InputError
from driving_scenes.scene import Scene
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.columns import EXTENDED_COMFORT, epdms
from navsim_score.pdms import pdms
from navsim_score.scorer import Scorer, Scores
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.traffic import TrafficPolicy

ONE_STAGE = "one stage"
TWO_STAGES = "two stages"


class Dialect(ABC):
    """Turns the `Scores` of one simulation into sub-scores and a total."""

    name: str
    drops_failed: bool = False
    """True if means leave out rows without a score, False if such rows count as 0."""

    @abstractmethod
    def shown(self, scores: Scores) -> Mapping[str, Tensor]:
        """Sub-scores ``[R]`` by official name, as the devkit writes them."""

    @abstractmethod
    def counted(self, scores: Scores) -> Mapping[str, Tensor]:
        """Sub-scores ``[R]`` that make the total."""

    @abstractmethod
    def total(self, counted: Mapping[str, Tensor]) -> Tensor:
        """``[R]`` in [0, 1], of `counted` columns."""

    @abstractmethod
    def scorer(self, scenes: Sequence[Scene], traffic: TrafficPolicy, plans: Sequence[ExpertPlan] | None) -> Scorer:
        """A scorer that computes the dialect's sub-scores; `plans` are PDM-Closed's, if known."""

    def full_name(self, traffic: object, stages: str = ONE_STAGE) -> str:
        """The name with the traffic policy and the number of stages, which change the numbers too."""
        return f"{self.name}, {stages}, {type(traffic).__name__}"

    def __call__(self, scores: Scores) -> Tensor:
        """The total ``[R]``; NaN in invalid rows."""
        return self.total(self.counted(scores))


@dataclass(frozen=True)
class HumanFilter:
    """Tells in which columns 1 replaces violations that the human commits too."""

    name: str
    columns: bool
    total: bool


FIXED = HumanFilter("", columns=True, total=True)
STALE = HumanFilter(" before 359c7f7", columns=True, total=False)
"""Until 2025-09-29, the product and the weighted terms kept the values from before the filter."""
OFF = HumanFilter(" without human filter", columns=False, total=False)


@dataclass(frozen=True)
class Epdms(Dialect):
    """NAVSIM 2's score, of a `Scorer` with ``human_filter`` (unless the filter is `OFF`).

    Args:
        human_filter: what the filter changes.
        extended_comfort: count EC in rows that have a previous frame.
        drops_failed: leave malformed plans out of means, as the devkit's script for one stage does.
    """

    human_filter: HumanFilter = FIXED
    extended_comfort: bool = True
    drops_failed: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        name = f"EPDMS{self.human_filter.name}"
        if not self.extended_comfort:
            name += " without EC"
        if self.drops_failed:
            name += " of valid rows"
        return name

    def full_name(self, traffic: object, stages: str = ONE_STAGE) -> str:
        if self.drops_failed and stages != ONE_STAGE:
            raise InputError("Expected a dialect of two stages, but got EPDMS of valid rows, try EPDMS.")
        return super().full_name(traffic, stages)

    def scorer(self, scenes: Sequence[Scene], traffic: TrafficPolicy, plans: Sequence[ExpertPlan] | None) -> Scorer:
        return Scorer(scenes, traffic, plans=plans, human_filter=self.human_filter.columns)

    def shown(self, scores: Scores) -> Mapping[str, Tensor]:
        return self._chosen_columns(scores, self.human_filter.columns)

    def counted(self, scores: Scores) -> Mapping[str, Tensor]:
        return self._chosen_columns(scores, self.human_filter.total)

    def total(self, counted: Mapping[str, Tensor]) -> Tensor:
        if not self.extended_comfort:
            counted = {name: value for name, value in counted.items() if name != EXTENDED_COMFORT}
        return epdms(counted)

    def _chosen_columns(self, scores: Scores, filtered: bool) -> Mapping[str, Tensor]:
        if filtered:
            return scores.columns
        # The filter cannot change extended comfort.
        extended = {name: value for name, value in scores.columns.items() if name == EXTENDED_COMFORT}
        return scores.unfiltered | extended


@dataclass(frozen=True)
class Pdms(Dialect):
    """NAVSIM 1.1's score, of a `Scorer` with ``pdms=True``; traffic is always the log, and stages are one."""

    name: str = "PDMS v1.1"

    def scorer(self, scenes: Sequence[Scene], traffic: TrafficPolicy, plans: Sequence[ExpertPlan] | None) -> Scorer:
        return Scorer(scenes, LogReplay(), plans=plans, human_filter=False, pdms=True)

    def shown(self, scores: Scores) -> Mapping[str, Tensor]:
        return self.counted(scores)

    def counted(self, scores: Scores) -> Mapping[str, Tensor]:
        if not scores.pdms:
            raise InputError("Expected scores with the columns of PDMS, but got none, try Scorer(..., pdms=True).")
        return scores.pdms

    def total(self, counted: Mapping[str, Tensor]) -> Tensor:
        return pdms(counted)

    def full_name(self, traffic: object, stages: str = ONE_STAGE) -> str:
        if stages != ONE_STAGE:
            raise InputError("Expected a dialect of NAVSIM 2 for two stages, but got PDMS, try EPDMS.")
        return f"{self.name}, {ONE_STAGE}, LogReplay"


EPDMS = Epdms()
PDMS = Pdms()
DIALECTS: Mapping[str, Dialect] = {
    "epdms": EPDMS,
    "epdms_no_ec": Epdms(FIXED, extended_comfort=False),
    "epdms_before_fix": Epdms(STALE),
    "epdms_before_fix_no_ec": Epdms(STALE, extended_comfort=False),
    "epdms_no_filter": Epdms(OFF),
    "epdms_no_filter_no_ec": Epdms(OFF, extended_comfort=False),
    "epdms_valid": Epdms(drops_failed=True),
    "pdms": PDMS,
}
"""Dialects by their key on the command line."""


def same_dialect(names: Iterable[str]) -> str:
    """Return the only full name.

    Raises:
        InputError: scores of several dialects, or none, would stand beside each other.
    """
    distinct = sorted(set(names))
    if len(distinct) != 1:
        raise InputError(f"Expected scores of one dialect to compare, but got {distinct}, try to score all with one.")
    return distinct[0]
