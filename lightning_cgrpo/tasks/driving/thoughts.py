"""Texts before the trajectory of a demonstration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from driving_scenes.scene import Scene
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.records import read_records
from lightning_cgrpo.tasks.driving.answers import AnswerFormat

SAMPLE = "[0.0,0.0], [0.0,0.0]"


class Thoughts(ABC):
    """Writes a text about a scene."""

    @abstractmethod
    def __call__(self, scene: Scene) -> str:
        """A text without brackets, which are reserved for trajectories."""


class WrittenThoughts(Thoughts):
    """Thoughts from a file, by a person or a larger model.

    Args:
        path: .jsonl or .parquet with ``scene``, a scene's name, and ``text``.

    Raises:
        UserError: the file is missing, or a record is malformed, repeats a scene or has brackets; (from a call) a scene
            has no text.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        for record in read_records(path):
            scene = record.text("scene")
            text = record.text("text").strip()
            if scene in self.texts:
                raise record.error(f"Expected one text of a scene, but got another one of '{scene}'.")
            if not readable(text):
                raise record.error(
                    f"Expected thoughts without brackets, in which trajectories are looked for, but got '{text[:80]}', "
                    "try dashes or quotation marks."
                )
            self.texts[scene] = text

    def __call__(self, scene: Scene) -> str:
        if scene.name not in self.texts:
            raise UserError(f"Expected thoughts on every training scene, but {self.path} has none on '{scene.name}'.")
        return self.texts[scene.name]


def readable(text: str) -> bool:
    """Check that a trajectory can be read after the text, which then has no brackets."""
    return AnswerFormat(waypoints=2).read(thought_first(text, SAMPLE)) is not None


def thought_first(text: str, trajectory: str) -> str:
    """The thoughts, then the trajectory on a new line."""
    return f"{text}\n{trajectory}"
