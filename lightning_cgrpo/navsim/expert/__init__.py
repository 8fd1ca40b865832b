"""Planners without knowledge of the future: constant velocity, and PDM-Closed, the official score's expert."""

from __future__ import annotations

from lightning_cgrpo.navsim.expert.constant_velocity import constant_velocity
from lightning_cgrpo.navsim.expert.pdm_closed import plan

__all__ = ["constant_velocity", "plan"]
