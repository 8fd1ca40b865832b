"""The state of a study's runs: their summaries, in their folders or in saved results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.cli.study.study import Run, configuration
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY, write_whole
from lightning_cgrpo.run import runs as reporting
from lightning_cgrpo.run.checkpoints.files import newest
from lightning_cgrpo.run.identity import identity_of, key_of
from lightning_cgrpo.run.place import Place
from lightning_cgrpo.run.record import RunRecord
from lightning_cgrpo.run.runs import read_record, saved_run
from lightning_cgrpo.settings.configuration import get
from lightning_cgrpo.settings.effects import learning
from lightning_cgrpo.settings.settings import settings_of

if TYPE_CHECKING:
    from lightning_cgrpo.datamodules.base import Split

After = Sequence[tuple[str, ...]]
"""Commands after training, in words."""
NOTES = "study.json"
"""In a run's folder: the error that stopped the run, and the commands after training that have ended well."""


@cache
def identity(run: Run) -> str:
    """Settings that change learning, seed, length, and starting weights."""
    config = configuration(run)
    model = get(config, "model.init_args.policy.init_args.model")
    weights = None if model is None else weights_fingerprint(model)
    return key_of({**identity_of(config), "weights": weights})


def identity_in(record: RunRecord) -> str:
    """The identity that a run wrote itself."""
    method = learning(record.method)
    return key_of({"method": method, "seed": record.seed, "length": record.length, "weights": record.weights})


@cache
def weights_fingerprint(model: str) -> str:
    """Fingerprint of a model's files.

    Raises:
        UserError: if the files are not on this machine.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    from lightning_cgrpo.policies.model_files import origin

    try:
        return origin(model).fingerprint
    except LocalEntryNotFoundError:
        raise UserError(
            f"Expected a model to start from on this machine, but got '{model}', try downloading it."
        ) from None
    except FileNotFoundError as error:
        raise UserError(f"Expected a model to start from, but got '{model}': {error}.") from None


def newest_version(run: Run) -> Path | None:
    """The newest folder of the run, which resumed from the folder before."""
    folders = [file.parent for file in run.folder.glob("version_*/config.yaml")]

    def number(folder: Path) -> int:
        return int(folder.name.rpartition("_")[2])

    return max(folders, key=number, default=None)


def record_of(run: Run) -> RunRecord | None:
    """The record of a begun run.

    Raises:
        UserError: if the folder holds another configuration's run, from which this run would resume.
    """
    folder = newest_version(run)
    if folder is None:
        return None
    record = read_record(folder / SUMMARY)
    if record is None or identity_in(record) != identity(run):
        raise UserError(
            f"Expected '{run.folder}' to hold the run of the same configuration, but its run had another one, try "
            "removing the folder, or another name for the study or the variant."
        )
    return record


def last_checkpoint(run: Run) -> Path | None:
    """The newest checkpoint of the run's versions that have trained with today's inputs."""
    checkpoints = []
    for folder in Place.of(configuration(run)).checkpoints():
        record = read_record(folder.parent / SUMMARY)
        if record is not None and not changed_inputs(run, record):
            checkpoints.append(folder)
    return newest(checkpoints)


def is_trained(run: Run) -> bool:
    """True if training is over. An exit status proves nothing: a function of the user may end the process."""
    record = record_of(run)
    return record is not None and record.status == "finished" and not changed_inputs(run, record)


def changed_inputs(run: Run, record: RunRecord) -> list[str]:
    """Names of the code, the prompts, and the listed files and folders that differ today from a run's training.

    Committed summaries without inputs count as unchanged.
    """
    inputs = record.inputs
    if not (inputs.code or inputs.prompts or inputs.files):
        return []
    # Imported here, because --list must not wait for torch.
    from lightning_cgrpo.run.reads import reads_in

    # By the run's settings, because docstrings of tools count, and listed packages. A class's defaults may name more.
    now = reads_in(settings_of(configuration(run)), also=inputs.code)
    changed = [f"code of {name}" for name in inputs.code if now.code.get(name) != inputs.code[name]]
    changed += [f"'{name}'" for name in inputs.files if now.files.get(name) != inputs.files[name]]
    for split, digest in inputs.prompts.items():
        if digest_now(run, split) != digest:
            changed.append(f"{split} prompts")
    return changed


@cache
def digest_now(run: Run, split: Split) -> str | None:
    """The digest of a split's prompts as they are now."""
    from lightning.pytorch import LightningDataModule

    from lightning_cgrpo.cli.loading import instantiate, prompts_digest_of
    from lightning_cgrpo.cli.preparation import import_names

    import_names()
    data = instantiate(configuration(run), data=LightningDataModule)["data"]
    return prompts_digest_of(data, split)


def progress(run: Run) -> tuple[int, int | None]:
    """Updates done, and updates asked if known."""
    folder = newest_version(run)
    record = None if folder is None else read_record(folder / SUMMARY)
    if record is None:
        return 0, None
    return record.updates, record.asked


def read_notes(run: Run) -> dict[str, Any]:
    """The notes that `write_notes` wrote."""
    path = run.folder / NOTES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_notes(run: Run, **values: Any) -> None:
    """Write ``error`` of a run, and ``after``, its commands after training that have ended well."""
    write_whole(run.folder / NOTES, json.dumps(values) + "\n")


def commands_left(run: Run, after: After) -> list[tuple[str, ...]]:
    """The commands after training that have not ended well."""
    ended = {*read_notes(run).get("after", ())}
    return [words for words in after if shlex.join(words) not in ended]


def describe_state(run: Run) -> str:
    """Describe an unfinished run."""
    record = record_of(run)
    error = read_notes(run).get("error")
    if record is None:
        return f"failed: {error}" if error else "open"
    changed = changed_inputs(run, record)
    if changed:
        return f"trained with other inputs ({', '.join(changed)})"
    if record.status == "finished":
        return f"trained, but failed afterwards: {error}" if error else "trained, but not tested"
    done = f"{record.updates:,}"
    if record.asked:
        done += f" of {record.asked:,}"
    return f"failed at {done}: {error}" if error else f"interrupted at {done}"


class Results:
    """Finished runs in folders on this machine, and in saved results.

    Args:
        results: folder with earlier reports' saved runs.
        report: folder of the study's report, possibly elsewhere.
        after: commands that follow training in a folder.
    """

    def __init__(self, results: Path, report: Path, after: After = ()) -> None:
        self.after = after
        self.saved: dict[str, RunRecord] = {}
        self.files: dict[str, Path] = {}
        # The report's own runs come first: another report may hold the same variant with an older default of a class.
        for path in [*sorted(report.glob("runs/*.json")), *sorted(results.glob("**/runs/*.json"))]:
            record = read_record(path)
            if record is not None and record.saved is not None and record.status == "finished":
                self.saved.setdefault(identity_in(record), record)
                self.files.setdefault(identity_in(record), path)

    def finished(self, run: Run) -> bool:
        if self.in_folder(run):
            return True
        saved = self.saved.get(identity(run))
        return saved is not None and not changed_inputs(run, saved)

    def in_folder(self, run: Run) -> bool:
        """True if the run is finished in its folder on this machine."""
        return is_trained(run) and not commands_left(run, self.after)

    def read(self, run: Run) -> reporting.Run:
        """A finished run's record, series and tests."""
        folder = newest_version(run)
        if not self.in_folder(run) or folder is None:
            return saved_run(self.saved[identity(run)])
        run_results = reporting.read_run(folder, read_record(folder / SUMMARY) or RunRecord())
        if run_results is None:
            raise UserError(f"Expected a log in '{folder}', but got none, try removing '{run.folder}'.")
        return run_results


def check_distinct(runs: Sequence[Run]) -> None:
    """Refuse two variants with equal settings."""
    seen: dict[str, Run] = {}
    for run in runs:
        first = seen.setdefault(identity(run), run)
        if first is not run:
            raise UserError(
                f"Expected variants to differ in their learning, but '{first.variant}' and '{run.variant}' do not."
            )
