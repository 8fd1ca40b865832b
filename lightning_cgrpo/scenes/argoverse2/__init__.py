"""Argoverse 2 sensor logs as scenes, without traffic lights and images."""

from lightning_cgrpo.scenes.argoverse2.source import Argoverse2

__all__ = ["Argoverse2"]
