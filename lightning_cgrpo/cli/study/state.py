"""The state of a study's runs: their summaries, in their folders or in saved results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.cli.configuration import get
from lightning_cgrpo.cli.method import identity_of, key_of
from lightning_cgrpo.cli.report import runs as reporting
from lightning_cgrpo.cli.report.runs import Summary, read_summary, saved_run
from lightning_cgrpo.cli.study.study import Run, configuration
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.manifest.effects import learning
from lightning_cgrpo.core.output import SUMMARY, write_whole

if TYPE_CHECKING:
    from lightning_cgrpo.datamodules.base import Split

NOTES = "study.json"
"""In a run's folder: the error that stopped the run, or that all commands after training have ended well."""


@cache
def identity(run: Run) -> str:
    """Settings that change learning, seed, length, and starting weights."""
    config = configuration(run)
    model = get(config, "model.init_args.policy.init_args.model")
    return key_of({**identity_of(config), "weights": None if model is None else weights(model)})


def identity_in(summary: Summary) -> str:
    """The identity that a run wrote itself."""
    kept = {key: summary.get(key) for key in ("method", "seed", "length", "weights")}
    return key_of({**kept, "method": learning(summary.get("method") or {})})


@cache
def weights(model: str) -> str:
    """Fingerprint of a model's files.

    Raises:
        UserError: if the files are not on this machine.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    from lightning_cgrpo.policies.pretrained import origin

    try:
        return origin(model).fingerprint
    except LocalEntryNotFoundError:
        raise UserError(
            f"Expected a model to start from on this machine, but got '{model}', try downloading it."
        ) from None
    except FileNotFoundError as error:
        raise UserError(f"Expected a model to start from, but got '{model}': {error}.") from None


def version(run: Run) -> Path | None:
    """The newest folder of the run, which resumed from the folder before."""
    folders = [file.parent for file in run.folder.glob("version_*/config.yaml")]
    return max(folders, key=lambda folder: int(folder.name.rpartition("_")[2]), default=None)


def summary_of(run: Run) -> Summary | None:
    """The summary of a begun run.

    Raises:
        UserError: if the folder holds another configuration's run, from which this run would resume.
    """
    folder = version(run)
    summary = None if folder is None else read_summary(folder / SUMMARY)
    if folder is not None and (summary is None or identity_in(summary) != identity(run)):
        raise UserError(
            f"Expected '{run.folder}' to hold the run of the same configuration, but its run had another one, try "
            "removing the folder, or another name for the study or the variant."
        )
    return summary


def trained(run: Run) -> bool:
    """True if training is over. An exit status proves nothing: a function of the user may end the process."""
    summary = summary_of(run)
    return summary is not None and summary["status"] == "finished" and not changed_inputs(run, summary)


def changed_inputs(run: Run, summary: Summary) -> list[str]:
    """What differs today of the code and the prompts that a run trained with.

    Summaries of before November 27, 2026 do not tell, and count as unchanged.
    """
    inputs = summary.get("inputs") or {}
    if not any(inputs.values()):
        return []
    # Imported here, because --list must not wait for torch.
    from lightning_cgrpo.core.manifest.reads import code_fingerprints

    trained_code = inputs.get("code", {})
    code_now = code_fingerprints(trained_code)
    changed = [f"code of {name}" for name in trained_code if code_now.get(name) != trained_code[name]]
    for split, digest in inputs.get("prompts", {}).items():
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
    """Updates done and asked, as far as known."""
    folder = version(run)
    summary = None if folder is None else read_summary(folder / SUMMARY)
    return (0, None) if summary is None else (summary["updates"], summary["asked"])


def notes(run: Run) -> dict[str, Any]:
    """The notes that `note` wrote."""
    path = run.folder / NOTES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def note(run: Run, **values: Any) -> None:
    """Write ``error`` and ``done`` of a run."""
    write_whole(run.folder / NOTES, json.dumps(values) + "\n")


def state(run: Run) -> str:
    """Describe an unfinished run."""
    summary, error = summary_of(run), notes(run).get("error")
    if summary is None:
        return f"failed: {error}" if error else "open"
    if changed := changed_inputs(run, summary):
        return f"trained with other inputs ({', '.join(changed)})"
    if summary["status"] == "finished":
        return f"trained, but failed afterwards: {error}" if error else "trained, but not tested"
    done = f"{summary['updates']:,} of {summary['asked']:,}" if summary["asked"] else f"{summary['updates']:,}"
    return f"failed at {done}: {error}" if error else f"interrupted at {done}"


class Results:
    """Finished runs in folders on this machine, and in saved results.

    Args:
        results: folder with earlier reports' saved runs.
        report: folder of the study's report, possibly elsewhere.
    """

    def __init__(self, results: Path, report: Path) -> None:
        self.saved: dict[str, Summary] = {}
        self.files: dict[str, Path] = {}
        # The report's own runs come first: another report may hold the same variant with an older default of a class.
        for path in [*sorted(report.glob("runs/*.json")), *sorted(results.glob("**/runs/*.json"))]:
            record = read_summary(path)
            if record is not None and "series" in record and record["status"] == "finished":
                self.saved.setdefault(identity_in(record), record)
                self.files.setdefault(identity_in(record), path)

    def finished(self, run: Run) -> bool:
        if self.in_folder(run):
            return True
        saved = self.saved.get(identity(run))
        return saved is not None and not changed_inputs(run, saved)

    def in_folder(self, run: Run) -> bool:
        return bool(notes(run).get("done")) and trained(run)

    def read(self, run: Run) -> reporting.Run:
        """A finished run's summary, series and tests."""
        folder = version(run)
        if not self.in_folder(run) or folder is None:
            return saved_run(self.saved[identity(run)])
        read = reporting.read_run(folder, read_summary(folder / SUMMARY) or {})
        if read is None:
            raise UserError(f"Expected a log in '{folder}', but got none, try removing '{run.folder}'.")
        return read


def check_distinct(runs: Sequence[Run]) -> None:
    """Refuse two variants with equal settings."""
    seen: dict[str, Run] = {}
    for run in runs:
        same = seen.setdefault(identity(run), run)
        if same is not run:
            raise UserError(
                f"Expected variants to differ in their learning, but '{same.variant}' and '{run.variant}' do not."
            )
