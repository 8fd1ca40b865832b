"""Thoughts of demonstrations: texts that stand before the trajectory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.records import read_records
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.tasks.driving.answers import AnswerFormat

SAMPLE = "[0.0,0.0], [0.0,0.0]"


class Thoughts(ABC):
    """What a demonstration says of a scene before it drives."""

    @abstractmethod
    def __call__(self, scene: Scene) -> str:
        """The text, in which no brackets are: trajectories are looked for in these."""


class WrittenThoughts(Thoughts):
    """Thoughts that somebody wrote, a person or a larger model, into a file.

    Args:
        path: a .jsonl or .parquet file with the fields ``scene``, a scene's name, and ``text``.

    Raises:
        UserError: there is no such file, a record is malformed, the second one of a scene, or has brackets; when it is
            called, there is none of the scene.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        for record in read_records(path):
            scene, text = record.text("scene"), record.text("text").strip()
            if scene in self.texts:
                raise record.error(f"Expected one text of a scene, but got another one of '{scene}'.")
            if AnswerFormat(waypoints=2).read(thought_first(text, SAMPLE)) is None:
                raise record.error(
                    f"Expected thoughts without brackets, in which trajectories are looked for, but got '{text[:80]}', "
                    "try dashes or quotation marks."
                )
            self.texts[scene] = text

    def __call__(self, scene: Scene) -> str:
        if scene.name not in self.texts:
            raise UserError(f"Expected thoughts on every training scene, but {self.path} has none on '{scene.name}'.")
        return self.texts[scene.name]


def thought_first(text: str, trajectory: str) -> str:
    """What is answered: thoughts, and on the next line the trajectory."""
    return f"{text}\n{trajectory}"
