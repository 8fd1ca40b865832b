"""Reading a split's files into the entries of its index."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from driving_scenes.cache import files_state
from driving_scenes.damage import faults
from driving_scenes.errors import first_line

LOGS_KEPT = 4
"""Unpickled logs in memory, because neighboring scenes are of one log."""
PRIVATE_FRAMES = 5
"""Frames of a scene of the private test, which make two overlapping histories."""


@dataclass
class Entry:
    """What the index knows of a file, a log or a synthetic scene; places are rows in its list of frames."""

    folders: list[str] = field(default_factory=list)  # of its images
    error: str | None = None  # why the file can't be read
    places: dict[str, int | list[int] | None] = field(default_factory=dict)  # first frame or frames by token
    times: dict[str, int] = field(default_factory=dict)  # microseconds by token
    ends: list[str] = field(default_factory=list)  # tokens of scenes' last frames
    town: str | None = None  # the name of its map
    images: int = 0  # number of images that scenes need
    faults: dict[str, str] = field(default_factory=dict)  # of images, by path
    broken: list[str] = field(default_factory=list)  # tokens of scenes whose images have faults
    log: str | None = None  # of a synthetic scene
    after: str | None = None  # of a synthetic scene: the token of the last frame before it
    state: str = ""  # of the file and its folders of images, as they were indexed

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Entry:
        """The entry of a JSON object."""
        return cls(**content)

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Indexer:
    """Makes entries of logs and synthetic scenes.

    Args:
        filter: of the official split.
        listed: tokens of the split; None for all tokens.
        history: number of a scene's frames up to now.
        future: number of a scene's frames after now.
        images: folder of the logs' images.
        synthetic_images: folder of the synthetic scenes' images.
        cameras: cameras whose images a scene needs.
        moments: number of last frames of the history whose images a scene needs.
    """

    filter: Mapping[str, Any]
    listed: set[str] | None
    history: int
    future: int
    images: Path
    synthetic_images: Path
    cameras: Sequence[str]
    moments: int

    def log(self, path: Path) -> Entry:
        """The entry of a log, also of a missing or damaged one."""
        return self._make_entry(path, self._fill_from_log)

    def synthetic(self, path: Path) -> Entry:
        """The entry of a synthetic scene's file."""
        return self._make_entry(path, self._fill_from_synthetic)

    def _make_entry(self, path: Path, content: Callable[[Any, Entry], None]) -> Entry:
        entry = Entry()
        try:
            content(unpickled.__wrapped__(path), entry)
        except FileNotFoundError:
            entry.error = "missing"
        except Exception as error:  # damaged pickles raise errors of all kinds
            entry.places = {}
            entry.error = f"corrupt ({type(error).__name__}: {first_line(error)})"
        entry.state = files_state(path, *map(Path, entry.folders))
        return entry

    def _fill_from_log(self, log: list[dict[str, Any]], entry: Entry) -> None:
        if "anns" not in log[0]:
            return self._fill_from_private(log, self.images, entry)
        entry.town = log[0]["map_location"]
        length = self.history + self.future
        shown = {}
        for start in range(0, len(log) - length + 1, self.filter.get("frame_interval") or length):
            now = log[start + self.history - 1]
            routed = bool(now["roadblock_ids"]) or not self.filter.get("has_route", True)
            if routed and (self.listed is None or now["token"] in self.listed):
                entry.places[now["token"]] = start
                entry.times[now["token"]] = int(now["timestamp"])
                entry.ends.append(log[start + length - 1]["token"])
                shown[now["token"]] = range(start, start + self.history)
        return self._look_at_images(log, self.images, shown, entry)

    def _fill_from_synthetic(self, scene: Any, entry: Entry) -> None:
        if isinstance(scene, list):
            return self._fill_from_private(scene, self.synthetic_images, entry)
        about = scene["scene_metadata"]
        token = about["initial_token"]
        entry.town = about["map_name"]
        entry.log = about["log_name"]
        entry.after = about["corresponding_original_scene"]
        entry.places[token] = None
        return self._look_at_images(scene["frames"], self.synthetic_images, {token: range(self.history)}, entry)

    def _fill_from_private(self, frames: list[dict[str, Any]], images: Path, entry: Entry) -> None:
        """Histories without annotations: of each scene's five frames, the first four and the last four."""
        scenes: dict[str, list[int]] = defaultdict(list)
        for number, frame in enumerate(frames):
            scenes[frame["scene_token"]].append(number)
        places = {}
        for rows in scenes.values():
            if len(rows) != PRIVATE_FRAMES:
                continue
            rows.sort(key=lambda row: frames[row].get("frame_idx", row))
            for place in (rows[:-1], rows[1:]):
                places[frames[place[self.history - 1]]["token"]] = place
        wanted = (self.listed or set()) | set(self.filter.get("reactive_synthetic_initial_tokens") or ())
        shown = {token: place for token, place in places.items() if not wanted or token in wanted}
        entry.places.update(shown)
        self._look_at_images(frames, images, shown, entry)

    def _look_at_images(
        self, frames: Sequence[dict[str, Any]], folder: Path, shown: Mapping[str, Sequence[int]], entry: Entry
    ) -> None:
        """Look at the images of each token's history."""
        needed: dict[str, list[str]] = {}  # images by token
        for token, rows in shown.items():
            needed[token] = []
            for row in rows[-self.moments :]:
                needed[token] += [image_path(folder, frames[row], name) for name in self.cameras]
        images: set[str] = set().union(*needed.values())
        entry.folders = sorted({str(Path(image).parent) for image in images})
        entry.images = len(images)
        entry.faults = faults(sorted(images))
        entry.broken = [token for token, paths in needed.items() if not entry.faults.keys().isdisjoint(paths)]


@lru_cache(LOGS_KEPT)
def unpickled(path: Path) -> Any:
    """The content of a log or a synthetic scene."""
    with path.open("rb") as file:
        return pickle.load(file)


def image_path(folder: Path, frame: dict[str, Any], camera: str) -> str:
    """The path of a frame's image; synthetic scenes write cameras in lower case."""
    cameras = frame.get("cams") or frame["camera_dict"]
    return str(folder / (cameras.get(camera) or cameras[camera.lower()])["data_path"])
