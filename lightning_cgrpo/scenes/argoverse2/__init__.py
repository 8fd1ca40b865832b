"""Argoverse 2 sensor logs as scenes; docs/navsim_score.md §17.

Reads, of each log, ``annotations.feather`` (or ``annotations_with_ego.feather``), ``city_SE3_egovehicle.feather`` and
``map/log_map_archive_*.json``, through pyarrow. There are no traffic lights; images aren't read.
"""

from lightning_cgrpo.scenes.argoverse2.source import Argoverse2

__all__ = ["Argoverse2"]
