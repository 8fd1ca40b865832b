"""Tasks: prompts, and the signals of an answer."""

from lightning_cgrpo.tasks.task import Task

__all__ = ["Task"]
