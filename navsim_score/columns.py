"""Names and weights of the sub-scores, and how they combine into a drive's score (docs/navsim_score.md §8).

Columns are tensors of one shape by official name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SHORT = {
    "NC": "no_at_fault_collisions",
    "DAC": "drivable_area_compliance",
    "DDC": "driving_direction_compliance",
    "TLC": "traffic_light_compliance",
    "EP": "ego_progress",
    "TTC": "time_to_collision_within_bound",
    "LK": "lane_keeping",
    "HC": "history_comfort",
    "EC": "two_frame_extended_comfort",
    "EPDMS": "epdms",
    "ADE@4s": "ade",
}
"""Official column by the paper's short name; `ade` is unofficial."""
MULTIPLIERS = tuple(SHORT[name] for name in ("NC", "DAC", "DDC", "TLC"))
WEIGHTS = {SHORT["EP"]: 5.0, SHORT["TTC"]: 5.0, SHORT["LK"]: 2.0, SHORT["HC"]: 2.0}
COLUMNS = (*MULTIPLIERS, *WEIGHTS)
"""Sub-scores, in the official order."""
EGO_PROGRESS = SHORT["EP"]
EXTENDED_COMFORT = SHORT["EC"]
EXTENDED_COMFORT_WEIGHT = 2.0
COMFORT = "comfort"
PDMS_MULTIPLIERS = (SHORT["NC"], SHORT["DAC"])
PDMS_WEIGHTS = {SHORT["EP"]: 5.0, SHORT["TTC"]: 5.0, COMFORT: 2.0}
"""Columns of NAVSIM 1.1."""


def multiplicative_metrics_prod(columns: Mapping[str, Tensor]) -> Tensor:
    """NC * DAC * DDC * TLC."""
    return torch.stack([columns[name] for name in MULTIPLIERS]).prod(0)


def weighted_average(columns: Mapping[str, Tensor]) -> Tensor:
    """Weighted mean (WAT) of EP, TTC, LK and HC, whose weights sum to 14; with EC, to 16.

    EC may be absent, or NaN in rows without a previous frame.
    """
    total = torch.stack([weight * columns[name] for name, weight in WEIGHTS.items()]).sum(0)
    count = sum(WEIGHTS.values())
    if EXTENDED_COMFORT not in columns:
        return total / count
    comfort = columns[EXTENDED_COMFORT]
    extended = (total + EXTENDED_COMFORT_WEIGHT * comfort) / (count + EXTENDED_COMFORT_WEIGHT)
    return torch.where(comfort.isnan(), total / count, extended)


def epdms(columns: Mapping[str, Tensor]) -> Tensor:
    """Extended PDM Score: `multiplicative_metrics_prod` times `weighted_average`."""
    return multiplicative_metrics_prod(columns) * weighted_average(columns)


def human_filtered(columns: Mapping[str, Tensor], human: Mapping[str, Tensor], applies: Tensor) -> dict[str, Tensor]:
    """Set columns to 1 where the human's value is exactly 0 and ``applies`` (bool) holds."""
    filtered = {}
    for name, value in columns.items():
        if name in human:
            value = torch.where(applies & (human[name] == 0), 1.0, value)
        filtered[name] = value
    return filtered
