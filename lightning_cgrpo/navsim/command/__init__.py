"""``python -m lightning_cgrpo score``: scores of trajectories in scene files."""

from lightning_cgrpo.navsim.command.main import main

__all__ = ["main"]
