"""Prompts and their splits, and nothing else."""

from lightning_cgrpo.datamodules.gridworld import GridworldDataModule

__all__ = ["GridworldDataModule"]
