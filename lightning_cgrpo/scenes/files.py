"""Scene files as a source."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.scenes.json_fields import Field, load_json
from lightning_cgrpo.scenes.logs import ALL, LogSource, Part
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.scene_file import SCENE_SUFFIX, read_scene


class SceneFiles(LogSource[Path]):
    """The scenes of a file or of a folder of ``*.scene.json``; the format is in docs/driving.md.

    A file that names no log is one by itself. Every file is read once to learn its log.

    Args:
        path: a file, or a folder, whose subfolders are searched as well.
        val_share: of the logs, for validation.
        test_share: of the logs, for tests.
        train_part: of the other logs, see `in_part`.

    Raises:
        UserError: from `scenes`, if there is no scene, or there are too few logs to split.
        SceneError: from `scenes` or from indexing, if a file isn't as documented.
    """

    def __init__(
        self, path: str | Path, val_share: float = 0.1, test_share: float = 0.1, train_part: Part = ALL
    ) -> None:
        super().__init__(val_share, test_share, train_part)
        self.path = Path(path)

    def logs(self) -> Collection[str]:
        return self._paths

    def keys(self, log: str) -> Sequence[Path]:
        return self._paths[log]

    def scene(self, key: Path) -> Scene:
        return read_scene(key)

    @cached_property
    def _paths(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in scene_files(self.path):
            log = Field(load_json(path), str(path)).get("log")
            own = path.relative_to(self.path).as_posix() if self.path.is_dir() else path.name
            found.setdefault(own if log.value is None else log.text(), []).append(path)
        return found


def scene_files(path: Path) -> list[Path]:
    """The scene files that a path means, sorted.

    Raises:
        UserError: there is none.
    """
    if path.is_file():
        return [path]
    found = sorted(path.rglob(f"*{SCENE_SUFFIX}"))
    if not found:
        raise UserError(f"Expected a scene file or a folder of *{SCENE_SUFFIX} files, but got {path}, which has none.")
    return found
