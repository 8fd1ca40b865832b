"""Controllers of the multipliers, and a guard for any controller. More controllers are in `examples/controllers`."""

from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.multipliers.damped_ascent import DampedAscent
from lightning_cgrpo.multipliers.guards import StallDetector
from lightning_cgrpo.multipliers.pid import PID
from lightning_cgrpo.multipliers.projected import ProjectedAscent
from lightning_cgrpo.multipliers.softmax import SoftmaxAdam
from lightning_cgrpo.objective.bound import rounded_up
from lightning_cgrpo.objective.units import standard_units

__all__ = [
    "PID",
    "Controller",
    "DampedAscent",
    "ProjectedAscent",
    "SoftmaxAdam",
    "StallDetector",
    "rounded_up",
    "standard_units",
]
