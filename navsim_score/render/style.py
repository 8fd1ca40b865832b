"""Colors and marks; vermilion to blue suits color-blind readers."""

from __future__ import annotations

from matplotlib.colors import LinearSegmentedColormap

from navsim_score.columns import SHORT

PAPER = "#fbfbf9"
ROAD = "#dfe2e6"
CONNECTOR = "#d5d9df"
CARPARK = "#e9e6dd"
ON_ROUTE = "#cfdcec"
EDGE = "#c2c7ce"
LANE_EDGE = "#ffffff"
LANE_LINE = "#b3bac4"
CENTERLINE = "#4f7cb3"
RED_LIGHT = "#d3212d"
INK = "#22262b"
FAINT_INK = "#7a828c"

AGENTS = {
    "vehicle": "#66788c",
    "pedestrian": "#8e5aa8",
    "bicycle": "#2f8f83",
    "traffic_cone": "#c98a2b",
    "barrier": "#8d7b68",
    "czone_sign": "#b59a57",
    "generic_object": "#8d8d8d",
}

SCORES = LinearSegmentedColormap.from_list("scores", ["#c8321f", "#ee8a3c", "#e9c84a", "#57ad8f", "#1c6fae"])

MARKS = {"NC": "X", "DAC": "s", "DDC": "<", "TLC": "o", "TTC": "P", "LK": "d"}
"""Marks of sub-scores with a place of violation."""
MARKED = {short: SHORT[short] for short in MARKS}
MEANINGS = {
    "NC": "at-fault collision",
    "DAC": "off the road",
    "DDC": "off the route's lanes",
    "TLC": "red light",
    "TTC": "would collide within 1 s",
    "LK": "off the lane's middle",
}

ROADS, LINES, MOTION, BOXES, PLANS, EGO, HITS, SIGNS = range(1, 9)
"""Layers, lowest first."""
