"""``python -m lightning_cgrpo score``: from files of scenes and trajectories to files of scores and pictures."""

from lightning_cgrpo.navsim.command.main import main

__all__ = ["main"]
