"""Seconds and memory of a start on logs of navtrain's number and size, made up in a folder.

python -m tests.scenes.navtrain_start FOLDER
"""

import pickle
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightning_cgrpo.scenes.devkit import NavsimDevkit
from lightning_cgrpo.scenes.devkit.installation import read_split
from lightning_cgrpo.tasks.driving.prompts import PromptFormat, messages
from tests.scenes.fake_devkit import TOWN, install, write_maps, write_split
from tests.scenes.scenes import straight_road

LOGS, TOKENS = 1192, 87
"""Of navtrain, whose 103,288 tokens are 87 a log."""
LONG = 660
"""Frames of a log of the whole data, whose 14 GB are 16 KB a frame."""
MEASURED = 6
"""Long logs that are written."""


def log(name: str, frames: int, agents: int) -> list[dict[str, Any]]:
    """A log of the devkit's layout, with agents and cameras."""
    cameras = ("F0", "L0", "L1", "L2", "R0", "R1", "R2", "B0")
    matrices = ("sensor2lidar_rotation", "sensor2lidar_translation", "cam_intrinsic")
    return [
        {
            "token": f"{name}{number:05}".zfill(16),
            "log_name": name,
            "map_location": TOWN,
            "roadblock_ids": ["1", "2"],
            "anns": {"gt_boxes": np.zeros((agents, 7)), "track_tokens": [f"{number}-{row}" for row in range(agents)]},
            "cams": {
                f"CAM_{one}": {"data_path": f"{name}/CAM_{one}/{number}.jpg", **{key: np.eye(3) for key in matrices}}
                for one in cameras
            },
        }
        for number in range(frames)
    ]


def timed(what: str, action: Callable[[], Any], scale: float = 1.0, unit: str = "s") -> Any:
    start, before = time.perf_counter(), time.process_time()
    result = action()
    seconds, busy = (time.perf_counter() - start) * scale, (time.process_time() - before) * scale
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {seconds:.2f} {unit}, {busy:.2f} of the CPU; the process has used up to {peak:.0f} MiB", flush=True)
    return result


def main(folder: Path) -> None:
    monkeypatch = pytest.MonkeyPatch()
    config = install(monkeypatch, folder)
    write_maps(folder, TOWN)
    for split, count, frames, agents in (("navtrain", LOGS, TOKENS + 13, 0), ("long", MEASURED, LONG, 150)):
        names = [f"{split}{number:04}" for number in range(count)]
        logs = folder / "data" / "navsim_logs" / split
        logs.mkdir(parents=True)
        tokens = []
        for name in names:
            content = log(name, frames, agents)
            tokens += [frame["token"] for frame in content[3:-10]]
            (logs / f"{name}.pkl").write_bytes(pickle.dumps(content))
        write_split(config, split, split, names, frame_interval=1, num_future_frames=10, tokens=tokens)
    megabytes = (logs / f"{names[0]}.pkl").stat().st_size / 1e6

    def source(split: str) -> NavsimDevkit:
        return NavsimDevkit(split, None, val_share=0.005, allow_pickles=True)

    timed("navtrain's list, first time", lambda: read_split("navtrain"))
    timed(f"index of a log of {megabytes:.1f} MB, {LONG} frames", lambda: source("long").scenes("train"), 1 / MEASURED)
    timed("first start", lambda: source("navtrain").scenes("train"))
    timed("later start", lambda: source("navtrain").scenes("train"))
    tracemalloc.start()
    scenes = source("navtrain").scenes("train")
    print(f"{len(scenes):,} scenes, {tracemalloc.get_traced_memory()[0] / 2**20:.0f} MiB of a process")
    tracemalloc.stop()
    picture = np.random.default_rng(0).integers(0, 255, (68, 120, 3), dtype=np.uint8)
    Image.fromarray(picture).resize((1920, 1080)).save(folder / "camera.jpg")
    form = PromptFormat(1, 0.5, ("CAM_F0",) * 9, 364, 672)
    scene = straight_road()
    images = [str(folder / "camera.jpg")] * len(scene.ego.times)
    scene = replace(scene, cameras={"CAM_F0": images}, intent="left")
    timed("nine images of a prompt", lambda: [messages(scene, form) for _ in range(5)], 1 / 5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
