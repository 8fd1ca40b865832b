"""The time grid of a simulation."""

from __future__ import annotations

DT = 0.1  # seconds between states
STEPS = 41  # states of a simulation, from 0 to 4 s
DURATION = 4.0  # seconds from the first state to the last
EARLY = 1e-6  # seconds by which two equal times may differ, because of rounding
