"""What `test` and `validate` logged by themselves, given to the runs whose checkpoints they evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_cgrpo.reporting import logs
from lightning_cgrpo.reporting.folders import Folder
from lightning_cgrpo.reporting.method import get
from lightning_cgrpo.reporting.runs import Identity, Run


def add_evaluations(
    runs: dict[Identity, Run],
    folders: Sequence[Folder],
    places: Mapping[Path, Identity],
    saved: Sequence[Identity],
    notes: list[str],
) -> None:
    """Give evaluations to runs, those of later folders winning.

    Args:
        runs: changed.
        folders: with evaluations only.
        places: the runs by the resolved folders of their logs.
        saved: the runs of saved files. They know the last two names of their folders only.
    """
    for folder in sorted(folders, key=lambda folder: folder.started):
        checkpoint = get(folder.config, "ckpt_path")
        # <folder>/checkpoints/<file>
        trained = Path(str(checkpoint or "")).parent.parent
        short = "/".join(trained.parts[-2:])
        owner = _owner(folder, trained, places)
        named = [identity for identity in saved if short and short in runs[identity].folders]
        if owner is None and len(named) == 1:
            [owner] = named
            notes.append(f"{folder.path}: taken for an evaluation of the saved run from {short}, by that name alone.")
        if owner is not None:
            found = logs.merged(folder.files).evaluations
            runs[owner] = replace(runs[owner], evaluations=_renewed(runs[owner].evaluations, found))
            continue
        why = f"of {checkpoint}, whose run is not found among these" if checkpoint else "of no checkpoint"
        why = f"of {checkpoint}, and several saved runs are from a folder {short}" if named else why
        notes.append(f"Skipped {folder.path}: it holds an evaluation only, {why}.")


def _renewed(known: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    """Evaluations with what was found later; a test without training prompts ends an earlier one of them."""
    tested = any(tag.startswith("test/") for tag in found)
    return {tag: v for tag, v in known.items() if not (tested and tag.startswith("test_train/"))} | dict(found)


def _owner(folder: Folder, trained: Path, places: Mapping[Path, Identity]) -> Identity | None:
    """The run that was logged in the folder `trained`, which may be relative to where the evaluation was started."""
    if not trained.parts:
        return None
    bases = [*folder.path.resolve().parents, Path.cwd()]
    return next((places[place] for base in bases if (place := (base / trained).resolve()) in places), None)
