"""NAVSIM's data (OpenScene logs and nuPlan maps) as scenes, read by the official devkit.

The devkit (https://github.com/autonomousvision/navsim, with nuplan-devkit) is imported when scenes are read. Tests use
fakes of the devkit's classes or, if the devkit is installed, a made-up log and map.
"""

from lightning_cgrpo.scenes.devkit.source import NavsimDevkit

__all__ = ["NavsimDevkit"]
