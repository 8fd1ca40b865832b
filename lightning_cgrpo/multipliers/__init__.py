"""Controllers of the multipliers, and guards for any controller."""

from lightning_cgrpo.multipliers.controller import Controller
from lightning_cgrpo.multipliers.damped_ascent import DampedAscent
from lightning_cgrpo.multipliers.exponentiated_gradient import ExponentiatedGradient
from lightning_cgrpo.multipliers.guards import StallDetector, WeightBounds, bounded, rounded_up
from lightning_cgrpo.multipliers.nupi import NuPI
from lightning_cgrpo.multipliers.pid import PID
from lightning_cgrpo.multipliers.projected import ProjectedAscent
from lightning_cgrpo.multipliers.softmax import SoftmaxAdam
from lightning_cgrpo.objective.units import standard_units

__all__ = [
    "PID",
    "Controller",
    "DampedAscent",
    "ExponentiatedGradient",
    "NuPI",
    "ProjectedAscent",
    "SoftmaxAdam",
    "StallDetector",
    "WeightBounds",
    "bounded",
    "rounded_up",
    "standard_units",
]
