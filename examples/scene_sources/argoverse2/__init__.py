"""Argoverse 2 sensor logs as scenes, without traffic lights and images."""

from examples.scene_sources.argoverse2.source import Argoverse2

__all__ = ["Argoverse2"]
