"""An index of a split: where each token's frames lie, and faults of the split's files, kept between runs.

Reading navtrain's logs takes minutes, and their contents more memory than a process should use. So a log is read into
the index once, and again only if the log or its folders of images change. A scene reads its own log.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import pickle
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from driving_scenes.cache import files_state, remember, remembered
from driving_scenes.damage import fault, faults
from driving_scenes.devkit.convert import FUTURE
from driving_scenes.devkit.indexing import Entry, Indexer, image_path, unpickled
from driving_scenes.devkit.installation import Folders, OfficialSplit
from driving_scenes.inventory import Pieces

ADJACENT = 550_000
"""Most microseconds between two frames that the devkit's script for one stage compares."""


class SplitIndex:
    """Tokens of an official split's logs and synthetic scenes.

    Args:
        folders: of the data.
        split: the official split.
        cameras: cameras whose images a scene needs.
        moments: number of last frames of the history whose images a scene needs.
    """

    def __init__(self, folders: Folders, split: OfficialSplit, cameras: Sequence[str], moments: int) -> None:
        self.folders = folders
        self.split = split
        self.cameras = cameras
        self.moments = moments
        self.history = int(split.filter.get("num_history_frames", 4))
        self.future = int(split.filter.get("num_future_frames", 10))
        self.logs_folder = folders.data / "navsim_logs" / split.data
        self.images = folders.data / "sensor_blobs" / split.data
        self.synthetic_images = folders.data / split.name / "sensor_blobs"
        tokens = split.filter.get("tokens")
        self.listed: set[str] | None = None if tokens is None else set(tokens)
        key = json.dumps(["with times", str(folders.data), split.name, split.state, list(cameras), moments])
        self._name = f"navsim/{split.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.logs: Sequence[str] = ()
        self.entries: dict[Path, Entry] = {}  # of the logs
        self.synthetic: dict[Path, Entry] = {}
        self._files: dict[str, Path] = {}

    def read(self, logs: Sequence[str], fresh: bool = False) -> None:
        """Index logs, and in two stages the synthetic scenes that follow them.

        Args:
            fresh: read all files, as if none were indexed.
        """
        known = remembered(self._name)
        before = dict(known)
        indexer = Indexer(
            filter=self.split.filter,
            listed=self.listed,
            history=self.history,
            future=self.future,
            images=self.images,
            synthetic_images=self.synthetic_images,
            cameras=self.cameras,
            moments=self.moments,
        )

        def indexed(path: Path, read: Callable[[Path], Entry]) -> Entry:
            if not fresh and str(path) in known:
                entry = Entry.read(known[str(path)])
                folders = [Path(folder) for folder in entry.folders]
                if entry.state == files_state(path, *folders) and not _was_mended(entry):
                    return entry
            entry = read(path)
            known[str(path)] = entry.as_json()
            return entry

        self.logs = logs
        paths = [self.logs_folder / f"{log}.pkl" for log in logs]
        self.entries = {path: indexed(path, indexer.log) for path in paths}
        self._files = {}
        ends: set[str] = set()
        for path, entry in self.entries.items():
            self._files |= dict.fromkeys(entry.places, path)
            ends.update(entry.ends)
        if self.split.filter.get("include_synthetic_scenes"):
            for path in sorted(self.synthetic_folder.glob("*.pkl")):
                entry = indexed(path, indexer.synthetic)
                if self._belongs_to_split(entry, ends):
                    self.synthetic[path] = entry
                    self._files |= dict.fromkeys(entry.places, path)
        if known != before:
            remember(self._name, known)

    @property
    def synthetic_folder(self) -> Path:
        """The devkit's synthetic scenes, of which the private test has the frames alone."""
        folder = self.folders.data / self.split.name
        scenes = folder / "synthetic_scene_pickles"
        return scenes if scenes.is_dir() else folder / "openscene_meta_datas"

    @property
    def tokens(self) -> list[str]:
        """Tokens of scenes that can be built: with their images and their town's map."""
        towns = {town for town in self._towns if self._map_fault(town)}
        left_out: set[str] = set()
        for entry in (*self.entries.values(), *self.synthetic.values()):
            left_out.update(entry.places if entry.town in towns else entry.broken)
        return sorted(self._files.keys() - left_out)[: self.split.filter.get("max_scenes")]

    def frames(self, token: str) -> list[dict[str, Any]] | None:
        """A scene's frames in its log; None for a synthetic scene with annotations, which the devkit reads itself."""
        path = self._files[token]
        place = (self.entries.get(path) or self.synthetic[path]).places[token]
        if place is None:
            return None
        log = unpickled(path)
        if isinstance(place, int):
            return log[place : place + self.history + self.future]
        return [log[row] for row in place]

    def next_frames(self, token: str) -> list[dict[str, Any]] | None:
        """Frames of the scene 0.5 s after a scene, in its log.

        None for synthetic scenes and the private test, and where the log ends, pauses, or lacks the route or an image.
        """
        path = self._files[token]
        place = self.entries[path].places[token] if path in self.entries else None
        if not isinstance(place, int):
            return None
        frames: list[dict[str, Any]] = unpickled(path)[place + 1 : place + 1 + self.history + self.future]
        if len(frames) < self.history + FUTURE:
            return None
        before, now = frames[self.history - 2 : self.history]
        pauses = int(now["timestamp"]) - int(before["timestamp"]) > ADJACENT
        routed = bool(now["roadblock_ids"]) or not self.split.filter.get("has_route", True)
        shown = frames[: self.history][-self.moments :]
        images: list[str] = []
        for frame in shown:
            images += [image_path(self.images, frame, camera) for camera in self.cameras]
        if pauses or not routed or faults(images):
            return None
        return frames

    def file(self, token: str) -> Path:
        """The log or the synthetic scene's file."""
        return self._files[token]

    def image_paths(self, token: str, frames: list[dict[str, Any]] | None) -> dict[str, list[str]]:
        """Paths of each camera's images, the oldest first, in a scene's `frames` or those after it."""
        file = self._files[token]
        folder = self.images if file in self.entries else self.synthetic_images
        if frames is None:
            frames = unpickled(file)["frames"]
        paths = {}
        for camera in self.cameras:
            paths[camera] = [image_path(folder, frame, camera) for frame in frames[: self.history]]
        return paths

    def previous(self, tokens: Collection[str]) -> dict[str, str]:
        """Of `tokens`, the last before each in its log, if at most 0.55 s before: the devkit's pairs of one stage."""
        before = {}
        for entry in self.entries.values():
            times = [(time, token) for token, time in entry.times.items() if token in tokens]
            for (time, token), (next_time, next_token) in pairwise(sorted(times)):
                if next_time - time <= ADJACENT:
                    before[next_token] = token
        return before

    @cached_property
    def caches(self) -> dict[str, Path]:
        """Metric caches by token, from the list that the devkit writes beside them."""
        folder = self.folders.metric_cache
        if folder is None:
            return {}
        lists = sorted((folder / "metadata").glob("*.csv"))
        if not lists:
            return {}
        paths = [Path(line) for line in lists[0].read_text().splitlines()[1:]]  # after the head
        return {path.parent.name: path for path in paths}

    def inventory(self) -> list[Pieces]:
        """Pieces that the indexed logs need."""
        images = 0
        image_faults: list[str] = []
        for entry in (*self.entries.values(), *self.synthetic.values()):
            images += entry.images
            image_faults += [f"{path}: {why}" for path, why in entry.faults.items()]
        pieces = [
            Pieces("logs", len(self.entries), _error_lines(self.entries)),
            self._tokens_found(),
            Pieces("images", images, tuple(image_faults)),
            self._maps_found(),
        ]
        if self.folders.metric_cache is not None:
            pieces.append(self._caches_found(self.folders.metric_cache))
        if self.split.filter.get("include_synthetic_scenes"):
            pieces.append(Pieces("synthetic files", len(self.synthetic), _error_lines(self.synthetic)))
            pieces.append(self._synthetic_found())
        return pieces

    def _tokens_found(self) -> Pieces:
        """Tokens of logs that can't be read are unknown, unless the logs are all of the split."""
        tokens: set[str] = set()
        for entry in self.entries.values():
            tokens.update(entry.places)
        lost: list[str] = []
        has_all_logs = set(self.logs) == set(self.split.filter.get("log_names") or self.logs)
        if self.listed is not None and has_all_logs:
            lost = sorted(self.listed - tokens)
        return Pieces("tokens", len(tokens) + len(lost), tuple(f"{self.logs_folder}: no token {name}" for name in lost))

    def _maps_found(self) -> Pieces:
        table = self.folders.maps / f"{self.folders.map_version}.json"
        wrong = {table: fault(table)}
        for town in self._towns:
            wrong[self.folders.maps / town] = self._map_fault(town)
        return Pieces("maps", len(wrong), tuple(f"{path}: {why}" for path, why in wrong.items() if why))

    def _caches_found(self, folder: Path) -> Pieces:
        wrong = faults(str(path) for token, path in self.caches.items() if token in self._files)
        lines = [f"{path}: {why}" for path, why in wrong.items()]
        for token in sorted(self._files.keys() - self.caches):
            lines.append(f"{folder / 'metadata'}: no cache of {token}")
        return Pieces("metric caches", len(self._files), tuple(lines))

    def _synthetic_found(self) -> Pieces:
        """Synthetic scenes that the split's pairs or lists name."""
        named: set[str] = set()
        for _, _, follow_ups in self.split.pairs:
            named.update(*follow_ups)  # pairs of tokens
        for key in ("synthetic_scene_tokens", "reactive_synthetic_initial_tokens"):
            named |= set(self.split.filter.get(key) or ())
        present: set[str] = set()
        for entry in self.synthetic.values():
            present.update(entry.places)
        lost = tuple(f"{self.synthetic_folder}: no synthetic scene {token}" for token in sorted(named - present))
        return Pieces("synthetic scenes", len(named | present), lost)

    @property
    def _towns(self) -> set[str]:
        return {entry.town for entry in (*self.entries.values(), *self.synthetic.values()) if entry.town}

    def _map_fault(self, town: str) -> str | None:
        maps = sorted((self.folders.maps / town).glob("*/map.gpkg"))
        return fault(maps[-1]) if maps else "missing"

    def _belongs_to_split(self, entry: Entry, ends: set[str]) -> bool:
        """As in the devkit: scenes of the listed tokens, else of the indexed logs."""
        if entry.error is not None or entry.log is None:
            return True
        if self.logs_folder / f"{entry.log}.pkl" not in self.entries:
            return False
        listed = self.split.filter.get("synthetic_scene_tokens")
        if listed is None:
            return entry.after in ends
        return not entry.places.keys().isdisjoint(listed)


def read_cache(path: Path) -> Any:
    """The devkit's `MetricCache` of a file."""
    with lzma.open(path) as file:
        return pickle.load(file)


def _was_mended(entry: Entry) -> bool:
    """True if a damaged image has changed; a file that is written in place leaves its folder's time as it was."""
    damaged = {path: why for path, why in entry.faults.items() if why != "missing"}
    return bool(damaged) and faults(damaged) != damaged


def _error_lines(entries: dict[Path, Entry]) -> tuple[str, ...]:
    return tuple(f"{path}: {entry.error}" for path, entry in entries.items() if entry.error)
