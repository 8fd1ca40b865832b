"""NAVSIM's data (OpenScene logs and nuPlan maps) as scenes.

The devkit (https://github.com/autonomousvision/navsim, with nuplan-devkit) is imported when scenes are read.
"""

from driving_scenes.devkit.source import NavsimDevkit

__all__ = ["NavsimDevkit"]
