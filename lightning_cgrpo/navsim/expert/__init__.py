"""Planners that know nothing of the future: PDM-Closed, the expert of the official score, and constant velocity."""

from __future__ import annotations

from lightning_cgrpo.navsim.expert.constant_velocity import constant_velocity
from lightning_cgrpo.navsim.expert.pdm_closed import plan

__all__ = ["constant_velocity", "plan"]
