"""Scene files as a source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from driving_scenes import SCENE_SUFFIX
from driving_scenes.damage import faults
from driving_scenes.errors import InputError
from driving_scenes.inventory import Pieces
from driving_scenes.json_fields import Field, SceneError, load_json
from driving_scenes.logs import ALL, LogSource, Part
from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene
from driving_scenes.source import Split


class SceneFiles(LogSource[Path]):
    """Scenes of a file, or of ``*.scene.json`` in a folder and its subfolders.

    Every file is read once to learn its log. A file without a log is a log of its own.

    Args:
        path: the file or folder.

    Raises:
        InputError: (from `scenes`) there is no scene, or there are too few logs to split.
        SceneError: (from `scenes` or indexing) a file isn't as documented.
    """

    def __init__(
        self, path: str | Path, val_share: float = 0.1, test_share: float = 0.1, train_part: Part = ALL
    ) -> None:
        super().__init__(val_share, test_share, train_part)
        self.path = Path(path)

    def logs(self) -> Collection[str]:
        return self._paths_by_log

    def keys(self, log: str) -> Sequence[Path]:
        return self._paths_by_log[log]

    def scene(self, key: Path) -> Scene:
        return read_scene(key)

    def inventory(self, split: Split) -> list[Pieces]:
        """All scene files, because the log of a corrupt file is unknown, and their images."""
        wrong = []
        images: list[str] = []
        for path in self._scene_files:
            try:
                cameras = read_scene(path).cameras
            except SceneError as error:
                wrong.append(str(error))
                continue
            for paths in cameras.values():
                images += paths
        lost = tuple(f"{path}: {why}" for path, why in faults(images).items())
        return [
            Pieces("scene files", len(self._scene_files), tuple(wrong), needed=1),
            Pieces("images", len(set(images)), lost),
        ]

    @cached_property
    def _scene_files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        files = sorted(self.path.rglob(f"*{SCENE_SUFFIX}"))
        if not files:
            raise InputError(
                f"Expected a scene file or a folder of *{SCENE_SUFFIX} files, but got {self.path}, which has none."
            )
        return files

    @cached_property
    def _paths_by_log(self) -> dict[str, list[Path]]:
        by_log: dict[str, list[Path]] = {}
        for path in self._scene_files:
            log = Field(load_json(path), str(path)).get("log").optional_text()
            if log is None:
                log = path.relative_to(self.path).as_posix() if self.path.is_dir() else path.name
            by_log.setdefault(log, []).append(path)
        return by_log
