"""``python -m navsim_score score``: scores of trajectories in scene files."""

from navsim_score.command.main import main

__all__ = ["main"]
