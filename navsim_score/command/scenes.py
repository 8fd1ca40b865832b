"""The command `scenes`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from driving_scenes import SCENE_SUFFIX
from driving_scenes.errors import InputError


def main(argv: Sequence[str] | None = None) -> None:
    """Write the scenes of an official split as scene files, named by their tokens.

    Raises:
        InputError: pickles aren't allowed, or the devkit or its data are missing.
    """
    parser = argparse.ArgumentParser(
        prog="python -m navsim_score scenes",
        description="Write the scenes of one of NAVSIM's splits as NAME.scene.json, for the command score. Needs the "
        "devkit and its data: OPENSCENE_DATA_ROOT, NUPLAN_MAPS_ROOT. A scene takes some hundred kilobytes.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--split", required=True, help="name of the devkit's split, such as navtest or navhard_two_stage"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder of the scene files")
    parser.add_argument(
        "--allow-pickles", action="store_true", help="read the logs, pickles that can run code: only trusted ones"
    )
    options = parser.parse_args(argv)
    # Imported here, because --help must not wait for torch.
    from driving_scenes.devkit import NavsimDevkit
    from driving_scenes.scene_file import write_scene

    if not options.allow_pickles:
        raise InputError(
            "Expected --allow-pickles, because logs are pickles, which can run code, try it if you trust them."
        )
    # Without a split for tests, and without shares to hold out, "train" is the whole split.
    scenes = NavsimDevkit(options.split, None, 0.0, allow_pickles=True).scenes("train")
    options.out.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        write_scene(scene, options.out / f"{scene.name}{SCENE_SUFFIX}")
    print(f"Wrote {len(scenes):,} scenes to {options.out}.")
