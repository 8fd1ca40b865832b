"""NAVSIM's scenes as a source."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driving_scenes.devkit.convert import plan_content, private_content, scene_content
from driving_scenes.devkit.index import SplitIndex, read_cache
from driving_scenes.devkit.installation import (
    DATA,
    EXPERIMENTS,
    Folders,
    OfficialSplit,
    find_folders,
    load_classes,
    read_split,
)
from driving_scenes.errors import InputError
from driving_scenes.inventory import Pieces, check_enough
from driving_scenes.logs import ALL, Part, checked_part, deal, in_part
from driving_scenes.scene import Scene
from driving_scenes.scene_file import scene_from_json
from driving_scenes.source import Scenes, SceneSource, Split


class NavsimDevkit(SceneSource):
    """NAVSIM's scenes, read by the official devkit. Not run on the real data.

    An index of the logs is kept in the user's cache, see `SplitIndex`. Scenes that lack an image or a map are left out.

    Environment variables of the devkit: OPENSCENE_DATA_ROOT (logs and images), NUPLAN_MAPS_ROOT, NUPLAN_MAP_VERSION
    (default nuplan-maps-v1.0), and for `metric_caches` NAVSIM_EXP_ROOT. Logs and caches are pickles, which can run any
    code, so set `allow_pickles` only for trusted files.

    Args:
        train: official split for training and validation.
        test: official split for tests, with its synthetic scenes. None holds out training logs.
        val_share: share of training logs for validation, and with `test` None also for tests.
        allow_pickles: unpickle logs and caches.
        metric_caches: use plan and centerline from ``$NAVSIM_EXP_ROOT/metric_cache``, if a scene has a cache (written
            by the devkit's run_metric_caching.sh).
        cameras: cameras with images, such as CAM_F0.
        train_part: part of the logs not held out that is for training, see `in_part`.
        moments: number of last frames, 0.5 s apart, whose images are needed; others may be missing.
        partial: go without pieces of the data, even if more than 1 % are missing.

    Raises:
        InputError: (from `scenes`) pickles aren't allowed, the devkit or a split is missing, a variable isn't set, or
            pieces of the data are missing.
    """

    def __init__(
        self,
        train: str = "navtrain",
        test: str | None = "navtest",
        val_share: float = 0.1,
        allow_pickles: bool = False,
        metric_caches: bool = False,
        cameras: Sequence[str] = (),
        train_part: Part = ALL,
        moments: int = 4,
        partial: bool = False,
    ) -> None:
        self.train = train
        self.test = test
        self.val_share = val_share
        self.allow_pickles = allow_pickles
        self.metric_caches = metric_caches
        self.cameras = tuple(cameras)
        self.train_part = checked_part(train_part)
        self.moments = moments
        self.partial = partial
        self._builders: dict[Split, _Builder] = {}

    def scenes(self, split: Split) -> Sequence[Scene]:
        builder = self._builder_of(split)
        return Scenes(builder.tokens, builder.scene)

    def next_frames(self, split: Split) -> Sequence[Scene | None]:
        """The logs' frames 0.5 s later, also those that the official split lacks as scenes."""
        builder = self._builder_of(split)
        return Scenes(builder.tokens, builder.next_scene)

    def _builder_of(self, split: Split) -> _Builder:
        if split not in self._builders:
            index = self._index_of(split)
            pieces = index.inventory()
            if not self.partial:
                check_enough(pieces, f"{index.split.name}'s {split} scenes", "data.scenes.partial=true")
            builder = _Builder(index, load_classes())
            self._builders[split] = builder
            lacking = [kind for kind in pieces if kind.faults]
            if lacking:
                counts = ", ".join(f"{kind.present:,} of {kind.expected:,} {kind.kind}" for kind in lacking)
                warnings.warn(
                    f"{len(builder.tokens):,} {split} scenes of {index.split.name}, with {counts}.", stacklevel=3
                )
        return self._builders[split]

    def inventory(self, split: Split) -> list[Pieces]:
        """Read all files of a split, and list the pieces, with those that are missing or corrupt."""
        return self._index_of(split, fresh=True).inventory()

    def _index_of(self, split: Split, fresh: bool = False) -> SplitIndex:
        if not self.allow_pickles:
            raise InputError(
                f"Expected `allow_pickles` to be true: NAVSIM's logs (${DATA}) and metric caches (${EXPERIMENTS}) are "
                "pickles, which can run any code when they are read, try allow_pickles=true if you trust them."
            )
        load_classes()
        folders = find_folders(self.metric_caches)
        official = read_split(self.train)
        logs = _logs_of(official, folders)
        if self.test is None:
            logs = deal(logs, self.val_share, self.val_share)[split]
        else:
            tests = read_split(self.test)
            test_logs = _logs_of(tests, folders)
            common = sorted(set(logs) & set(test_logs))
            if common:
                raise InputError(
                    f"Expected splits without a common log, but '{self.train}' and '{self.test}' share {len(common)}, "
                    f"such as {common[0]}, try test=null to hold out training logs."
                )
            if split == "test":
                official = tests
                logs = test_logs
            else:
                logs = deal(logs, self.val_share, 0)[split]
        if split == "train":
            logs = in_part(logs, self.train_part)
        index = SplitIndex(folders, official, self.cameras, self.moments)
        index.read(logs, fresh)
        return index


@dataclass(eq=False)
class _Builder:
    """Builds the scenes of an index."""

    index: SplitIndex
    classes: dict[str, Any]  # of the devkit, by name

    def __post_init__(self) -> None:
        self.tokens = self.index.tokens
        present = set(self.tokens)
        if self.index.split.pairs:
            self.related = _related_fields(self.index.split.pairs, present)
        else:
            self.related = {token: {"previous": before} for token, before in self.index.previous(present).items()}

    def scene(self, token: str) -> Scene:
        frames = self.index.frames(token)
        return self._make_scene(token, token, frames, self.related.get(token, {}))

    def next_scene(self, token: str) -> Scene | None:
        """The scene 0.5 s after a scene; None if the log lacks it."""
        frames = self.index.next_frames(token)
        if frames is None:
            return None
        return self._make_scene(frames[self.index.history - 1]["token"], token, frames, {"previous": token})

    def _make_scene(self, name: str, token: str, frames: list[dict[str, Any]] | None, related: dict[str, Any]) -> Scene:
        """A scene of `frames`, in the file of the scene `token`."""
        if frames is not None and len(frames) == self.index.history:
            content = private_content(name, frames)
        else:
            content = self._annotated_content(name, token, frames)
        if name in self.index.caches:
            content["overrides"] = plan_content(read_cache(self.index.caches[name]))
        if self.index.cameras:
            content["cameras"] = self.index.image_paths(token, frames)
        return scene_from_json({**content, **related}, f"NAVSIM scene {name}")

    def _annotated_content(self, name: str, token: str, frames: list[dict[str, Any]] | None) -> dict[str, Any]:
        index = self.index
        kind = self.classes["Scene"]
        sensors = self.classes["SensorConfig"].build_no_sensors()
        if frames is None:
            official = kind.load_from_disk(index.file(token), index.synthetic_images, sensors)
        else:
            future = len(frames) - index.history
            official = kind.from_scene_dict_list(frames, index.images, index.history, future, sensors)
        scenario = self.classes["NavSimScenario"](official, str(index.folders.maps), index.folders.map_version)
        return scene_content(name, official, scenario, self.classes["SemanticMapLayer"])


def _logs_of(split: OfficialSplit, folders: Folders) -> list[str]:
    """A split's list of logs, or all in its folder."""
    listed: list[str] | None = split.filter.get("log_names")
    if listed is not None:
        return listed
    folder: Path = folders.data / "navsim_logs" / split.data
    names = sorted(path.stem for path in folder.glob("*.pkl"))
    if not names:
        raise InputError(f"Expected logs (*.pkl) of the split '{split.name}' in {folder}, but got none.")
    return names


def _related_fields(pairs: list[Any], present: set[str]) -> dict[str, dict[str, Any]]:
    """The fields `previous` and `follow_ups`, by token, of present scenes."""
    fields: dict[str, dict[str, Any]] = {}
    for now, previous, follow_ups in pairs:
        after_now = [after for after, _ in follow_ups if after in present]
        after_previous = [before for _, before in follow_ups if before in present]
        fields[now] = {"previous": previous, "follow_ups": after_now}
        fields[previous] = {"follow_ups": after_previous}
        for after, before in follow_ups:
            fields[after] = {"previous": before}
    return fields
