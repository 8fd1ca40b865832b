"""Tasks: prompts and signals of answers."""

from lightning_cgrpo.tasks.task import Task

__all__ = ["Task"]
