"""Planners that know nothing of the future: PDM-Closed, the expert of the official score, and constant velocity."""

from __future__ import annotations

from lightning_cgrpo.tasks.driving.planner.constant_velocity import constant_velocity
from lightning_cgrpo.tasks.driving.planner.pdm_closed import Plan, plan

__all__ = ["Plan", "constant_velocity", "plan"]
