"""Argoverse 2 sensor logs as scenes; NAVSIM.md section 4.

Reads, of each log, ``annotations.feather`` (or ``annotations_with_ego.feather``), ``city_SE3_egovehicle.feather`` and
``map/log_map_archive_*.json``, through pyarrow. There are no traffic lights; images aren't read.
"""

from lightning_cgrpo.scenes.argoverse2.source import Argoverse2

__all__ = ["Argoverse2"]
