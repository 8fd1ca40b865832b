"""NAVSIM's own data (OpenScene logs and nuPlan maps) as scenes, read by the official devkit.

The devkit (https://github.com/autonomousvision/navsim, with nuplan-devkit) is imported only when scenes are asked for.
This has not run on the real data. Its tests use fakes of the devkit's documented classes, and where the devkit is
installed its own loader and scenario, on a made-up log and map.
"""

from lightning_cgrpo.scenes.devkit.source import NavsimDevkit

__all__ = ["NavsimDevkit"]
