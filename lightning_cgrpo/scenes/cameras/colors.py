"""Colors of camera views."""

from __future__ import annotations

Color = tuple[int, int, int]

SKY, GRASS = (178, 205, 232), (112, 135, 88)
AREA, ROAD, JUNCTION = (98, 94, 88), (82, 82, 86), (104, 104, 110)
LEFT_BORDER, BORDER = (240, 190, 30), (232, 232, 232)
RED, GREEN, CASE = (255, 20, 20), (10, 235, 60), (15, 15, 15)
TYPES = ((40, 95, 200), (255, 90, 150), (160, 60, 200), (255, 135, 0), (215, 200, 150), (255, 170, 60), (120, 80, 50))
"""Colors of `AGENT_TYPES`."""
