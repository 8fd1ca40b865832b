"""NAVSIM's scenes as a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.scenes.devkit.convert import SYNTHETIC_TOKEN, plan_content, scene_content
from lightning_cgrpo.scenes.devkit.installation import (
    DATA,
    EXPERIMENTS,
    Folders,
    OfficialSplit,
    find_folders,
    load_classes,
    read_split,
)
from lightning_cgrpo.scenes.logs import ALL, Part, checked_part, deal, in_part
from lightning_cgrpo.scenes.scene import Scene
from lightning_cgrpo.scenes.scene_file import scene_from_json
from lightning_cgrpo.scenes.source import Scenes, SceneSource, Split


class NavsimDevkit(SceneSource):
    """NAVSIM's scenes, read by the official devkit. Not run on the real data.

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

    Raises:
        UserError: (from `scenes`) pickles aren't allowed, the devkit or a split is missing, or a variable isn't set.
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
    ) -> None:
        self.train, self.test, self.val_share = train, test, val_share
        self.allow_pickles, self.metric_caches, self.cameras = allow_pickles, metric_caches, tuple(cameras)
        self.train_part = checked_part(train_part)
        self._read: dict[Split, Sequence[Scene]] = {}

    def scenes(self, split: Split) -> Sequence[Scene]:
        # Once, because the devkit unpickles all logs of a split.
        if split not in self._read:
            self._read[split] = self._scenes(split)
        return self._read[split]

    def _scenes(self, split: Split) -> Sequence[Scene]:
        if not self.allow_pickles:
            raise UserError(
                f"Expected `allow_pickles` to be true: NAVSIM's logs (${DATA}) and metric caches (${EXPERIMENTS}) are "
                "pickles, which can run any code when they are read, try allow_pickles=true if you trust them."
            )
        classes = load_classes()
        folders = find_folders(self.metric_caches)
        official = read_split(self.train)
        logs = _logs(official, folders)
        if self.test is None:
            logs = deal(logs, self.val_share, self.val_share)[split]
        else:
            tests = read_split(self.test)
            test_logs = _logs(tests, folders)
            both = sorted(set(logs) & set(test_logs))
            if both:
                raise UserError(
                    f"Expected splits without a common log, but '{self.train}' and '{self.test}' share {len(both)}, "
                    f"such as {both[0]}, try test=null to hold out training logs."
                )
            official, logs = (tests, test_logs) if split == "test" else (official, deal(logs, self.val_share, 0)[split])
        if split == "train":
            logs = in_part(logs, self.train_part)
        loader = _Loader(classes, folders, official, logs, self.cameras)
        return Scenes(loader.tokens, loader.scene)


class _Loader:
    def __init__(
        self, classes: dict[str, Any], folders: Folders, split: OfficialSplit, logs: list[str], cameras: tuple[str, ...]
    ) -> None:
        self.classes, self.folders, self.cameras = classes, folders, cameras
        self.images = folders.data / "sensor_blobs" / split.data
        self.synthetic_images = folders.data / split.name / "sensor_blobs"
        self.official = classes["SceneLoader"](
            data_path=folders.data / "navsim_logs" / split.data,
            original_sensor_path=self.images,
            scene_filter=classes["SceneFilter"](**{**split.filter, "log_names": logs}),
            synthetic_sensor_path=self.synthetic_images,
            synthetic_scenes_path=folders.data / split.name / "synthetic_scene_pickles",
            sensor_config=classes["SensorConfig"].build_no_sensors(),
        )
        self.tokens: list[str] = sorted(self.official.tokens)
        cache = folders.metric_cache
        self.caches = None if cache is None else classes["MetricCacheLoader"](cache)
        self.cached = set() if self.caches is None else set(self.caches.tokens)
        self.related = _related(split.pairs)

    def scene(self, token: str) -> Scene:
        official = self.official.get_scene_from_token(token)
        scenario = self.classes["NavSimScenario"](official, str(self.folders.maps), self.folders.map_version)
        content = scene_content(token, official, scenario, self.classes["SemanticMapLayer"])
        if self.caches is not None and token in self.cached:
            content["overrides"] = plan_content(self.caches.get_from_token(token))
        if self.cameras:
            content["cameras"] = self._images(token, official.scene_metadata.num_history_frames)
        return scene_from_json({**content, **self.related.get(token, {})}, f"NAVSIM scene {token}")

    def _images(self, token: str, frames: int) -> dict[str, list[str]]:
        if len(token) != SYNTHETIC_TOKEN:
            log = self.official.scene_frames_dicts[token][:frames]
            return {
                name: [str(self.images / frame["cams"][name]["data_path"]) for frame in log] for name in self.cameras
            }
        # The devkit reports a synthetic scene's paths only together with the images.
        sensors = self.classes["SensorConfig"].build_no_sensors()
        for name in self.cameras:
            setattr(sensors, name.lower(), True)
        scene = self.classes["Scene"].load_from_disk(
            self.official.synthetic_scenes[token][0], self.synthetic_images, sensors
        )
        return {
            name: [
                str(self.synthetic_images / getattr(frame.cameras, name.lower()).camera_path)
                for frame in scene.frames[:frames]
            ]
            for name in self.cameras
        }


def _logs(split: OfficialSplit, folders: Folders) -> list[str]:
    """A split's list of logs, or all in its folder."""
    listed: list[str] | None = split.filter.get("log_names")
    if listed is not None:
        return listed
    folder: Path = folders.data / "navsim_logs" / split.data
    names = sorted(path.stem for path in folder.glob("*.pkl"))
    if not names:
        raise UserError(f"Expected logs (*.pkl) of the split '{split.name}' in {folder}, but got none.")
    return names


def _related(pairs: list[Any]) -> dict[str, dict[str, Any]]:
    """The fields `previous` and `follow_ups`, by token."""
    fields: dict[str, dict[str, Any]] = {}
    for now, previous, after in pairs:
        fields[now] = {"previous": previous, "follow_ups": [pair[0] for pair in after]}
        fields[previous] = {"follow_ups": [pair[1] for pair in after]}
        fields |= {pair[0]: {"previous": pair[1]} for pair in after}
    return fields
