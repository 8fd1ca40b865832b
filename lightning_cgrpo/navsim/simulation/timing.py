"""When a simulated ego is seen."""

from __future__ import annotations

DT = 0.1
"""Seconds between states."""
STEPS = 41
"""States of a simulation, from 0 to 4 s."""
