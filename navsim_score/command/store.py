"""The command `store`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from driving_scenes import SCENE_SUFFIX
from driving_scenes.errors import InputError

CACHE = "metric_cache.pkl"


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare scenes for scoring, once, and write them as a folder that `NavsimSignals` reads by memory map.

    Raises:
        InputError: nothing to store, pickles aren't allowed, or (after writing) unusable files.
    """
    parser = argparse.ArgumentParser(
        prog="python -m navsim_score store",
        usage="%(prog)s (--caches DIR --allow-pickles | --scenes PATH) --out DIR [--workers N]",
        description="Convert the devkit's metric caches, or scene files, once into a folder that "
        "navsim_score.signals.NavsimSignals reads by memory map, without pickles and without the devkit. "
        "A scene takes some hundred kilobytes.",
        epilog="An unusable file is told and left out; the exit status is then 2.",
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--caches", metavar="DIR", type=Path, help="$NAVSIM_EXP_ROOT/metric_cache, or a folder in it")
    source.add_argument("--scenes", metavar="PATH", type=Path, help=f"a scene, or a folder of NAME{SCENE_SUFFIX}")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--allow-pickles", action="store_true", help="read the caches, pickles that can run code: only trusted ones"
    )
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="processes (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.workers < 1:
        raise InputError(f"Expected --workers to be at least 1, but got {options.workers}.")
    if options.caches is not None and not options.allow_pickles:
        raise InputError(
            "Expected --allow-pickles, because caches are pickles, which can run code, try it if you trust them."
        )
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"Expected --out to be a folder, but '{options.out}' is a file.")
    if options.caches is None:
        paths = _matching_files(options.scenes, f"*{SCENE_SUFFIX}")
    else:
        paths = _matching_files(options.caches, CACHE)
    # Imported here, because --help and wrong paths must not wait for torch.
    import torch

    from driving_scenes.devkit.installation import load_classes
    from navsim_score.provenance import Provenance, devkit_version, scorer_version
    from navsim_score.store.preparing import of_metric_cache, of_scene_file, prepare
    from navsim_score.store.store import write_store

    torch.set_num_threads(1)  # processes share the work
    if options.caches is None:
        read = of_scene_file
        source_name = f"scene files in {options.scenes}"
        devkit = None
    else:
        load_classes()  # the caches' classes are the devkit's
        read = of_metric_cache
        source_name = f"metric caches in {options.caches}"
        devkit = devkit_version()
    wrong: list[str] = []
    provenance = Provenance(source_name, devkit, scorer_version(), "")
    try:
        known = write_store(options.out, prepare(read, paths, options.workers, wrong), provenance)
    except OSError as error:
        raise InputError(f"The store can't be written: {error.filename}: {error.strerror or error}.") from error
    except InputError as error:
        raise InputError("\n".join([str(error), *wrong])) from None
    print(f"Wrote {len(paths) - len(wrong):,} scenes to {options.out}: {known}.")
    if wrong:
        raise InputError(f"{len(wrong)} of {len(paths)} files could not be stored:\n" + "\n".join(wrong))


def _matching_files(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.rglob(pattern))
    if not files:
        raise InputError(f"Expected a folder with files {pattern}, but '{path}' has none.")
    return files
