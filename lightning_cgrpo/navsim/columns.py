"""Names and weights of the sub-scores (docs/navsim_score.md §8)."""

from __future__ import annotations

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
