"""Tasks: prompts, and the signals measured of an answer."""

from lightning_cgrpo.tasks.task import Task

__all__ = ["Task"]
