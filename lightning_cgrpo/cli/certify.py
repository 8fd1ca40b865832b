"""The command ``certify``: one look at prompts that neither trained nor selected the policy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.checkpoints.files import is_remote, written_in
from lightning_cgrpo.cli.configuration import ConfigError, Resolved, get
from lightning_cgrpo.cli.run_folders import find_checkpoint
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.reward_kept import advice

if TYPE_CHECKING:
    from lightning_cgrpo.core.manifest.manifest import Manifest

STATUS = {"certified": 0, "refuted": 3, "undecided": 4}
"""Exit status by decision; 1 and 2 are errors."""
CONFIDENCE = 0.95
CLUSTER_KEY = "data.cluster"
"""The setting of `PromptDataModule` that names clusters of prompts."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; ends with a status of `STATUS`."""
    from lightning_cgrpo.cli.arguments import read_arguments

    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo certify",
        description="Decide whether a checkpoint's policy meets its thresholds: certified (status 0), refuted (3) or "
        "undecided (4).",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--ckpt_path=FILE] [--prompts N] [--confidence 0.95]",
        epilog="The checkpoint is by default the best that validation ranked, else the last. A second call prints the "
        "recorded verdict. Looks at a run share the error 1 - confidence. See docs/verdicts.md.",
        allow_abbrev=False,
    )
    prompts = "prompts (default: those of the objective's look:, else as many as test prompts)"
    parser.add_argument("--prompts", metavar="N", type=int, help=prompts)
    confidence = f"over all constraints (default: that of the objective's look:, else {CONFIDENCE})"
    parser.add_argument("--confidence", metavar="P", type=float, help=confidence)
    options, rest = parser.parse_known_args(argv)
    if options.prompts is not None and options.prompts < 1:
        raise ConfigError(f"Expected --prompts to be at least 1, but got {options.prompts}.")
    if options.confidence is not None and not 0.5 <= options.confidence < 1:
        raise ConfigError(f"Expected --confidence from 0.5 to below 1, but got {options.confidence}, try 0.95.")
    config, _ = read_arguments("certify", rest)
    objective = _objective(config)
    if (look := objective.look) is not None:
        options.prompts = options.prompts or look.prompts
        options.confidence = options.confidence or look.confidence
    beginning = find_checkpoint("certify", config)
    certificate = _certificate(config, beginning, objective, options.prompts, options.confidence)
    if certificate is None:  # another process tells
        return
    if STATUS[certificate["decision"]]:
        sys.exit(STATUS[certificate["decision"]])


def _certificate(
    config: Resolved, beginning: str | None, objective: Objective, prompts: int | None, confidence: float | None
) -> dict[str, Any] | None:
    """The recorded or new certificate, printed; None on all processes but the first."""
    from filelock import FileLock
    from lightning.pytorch.utilities import rank_zero_only

    from lightning_cgrpo.cli.certificate import Asked, certificate_of, decided
    from lightning_cgrpo.cli.certificate_table import show
    from lightning_cgrpo.cli.loading import held, read_checkpoint, read_manifest
    from lightning_cgrpo.cli.look import sample_of
    from lightning_cgrpo.cli.looks import (
        FILE,
        certificates,
        check_writable,
        error_share,
        looks_at,
        record,
        recorded,
        used_prompts,
    )
    from lightning_cgrpo.cli.policy_identity import data_of, identity, measuring
    from lightning_cgrpo.cli.preparation import prepare

    prepare("certify", config, beginning)
    if is_remote(config["ckpt_path"]):
        raise ConfigError(
            f"Expected a checkpoint on this machine, beside which the look is recorded, but got {config['ckpt_path']}."
        )
    checkpoint = Path(config["ckpt_path"])
    # A copy of a checkpoint is looked at as the run's own.
    folder, origin = checkpoint.parent, written_in(checkpoint)
    folders = {folder} if origin is None else {folder, origin}
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if first:
        for place in folders:
            check_writable(place)
    # A running `fit` may replace the file, whose first content is what counts. One look at a time, because looks share
    # their error and their prompts.
    lock = FileLock((origin or folder) / f".{FILE}.lock") if first else nullcontext()
    with lock, held(checkpoint) as kept:
        # Which policy is asked what.
        manifest = read_manifest(kept)
        data, digest = data_of(config)
        _check_data(manifest, data, checkpoint)
        update, weights, base = read_checkpoint(kept)
        policy = identity(weights, measuring(config, base))
        question = {
            "constraints": {name: asdict(constraint) for name, constraint in decided(objective).items()},
            "data": data | {"test prompts": digest},
            "confidence": confidence,
            "prompts": prompts,
        }

        # The same question to the same policy has its answer.
        lineage = () if manifest is None else manifest.lineage
        looks = looks_at(folders, lineage)
        earlier = recorded(looks, policy, question)
        note = _note(folder / FILE, objective)
        if earlier is not None:
            if not first:
                return None
            # The policy may have been looked at in another folder of the run.
            for place in folders:
                if earlier not in certificates(place).values():
                    record(place, earlier)
            show(earlier, f"Nothing was sampled, because the look was taken on {earlier['at'][:10]}. {note}")
            return earlier

        # A new look, at prompts that neither trained nor served an earlier look.
        used = used_prompts(looks, {} if manifest is None else manifest.used_as)
        asked = Asked(prompts, confidence or CONFIDENCE, len(looks) + 1, used)
        sample = sample_of(config.replaced(ckpt_path=str(kept)), objective, asked)
        if sample is None:
            return None
        seen = certificate_of(sample, objective, asked)
        certificate = {
            "checkpoint": checkpoint.name,
            "update": update,
            "policy": policy,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "look": asked.number,
            "error": (1 - asked.confidence) * error_share(asked.number),
            "lineage": list(lineage),
            "question": question | {"confidence": asked.confidence, "prompts": seen["prompts"]},
            **seen,
        }
        for place in folders:
            record(place, certificate)
    show(certificate, note)
    return certificate


def _check_data(manifest: Manifest | None, data: dict[str, Any], checkpoint: Path) -> None:
    """Refuse other data than the run's own, whose settings say which prompts trained and selected the policy.

    Args:
        data: settings that decide the test prompts.
    """
    from lightning.pytorch.utilities import rank_zero_only

    from lightning_cgrpo.cli.policy_identity import FREE, PLACES
    from lightning_cgrpo.core.manifest.manifest import shown
    from lightning_cgrpo.core.manifest.settings import differing

    if manifest is None or manifest.settings is None:
        rank_zero_only(print)(
            "The checkpoint does not tell the data of its run, so this configuration says which prompts trained and "
            "selected the policy."
        )
        return
    of_run = {}
    for key, value in manifest.settings.items():
        if key.partition(".")[0] == "data" and (key in data or key not in (*FREE, *PLACES)):
            of_run[key] = value
    for key, (before, now) in differing(of_run, data).items():
        if key == CLUSTER_KEY:
            continue  # which prompts belong together may be found out after training
        raise ConfigError(
            "Expected the data of the checkpoint's run, to know which prompts trained and selected the policy, but got "
            f"another {key}: {shown(before)} -> {shown(now)}, try -c {checkpoint.parent.parent / 'config.yaml'}."
        )


def _note(file: Path, objective: Objective) -> str:
    """The lines below a certificate, with those of the run's card about a lost reward."""
    from lightning_cgrpo.cli.certificate import decided
    from lightning_cgrpo.cli.report.runs import read_summary

    note = f"Recorded in {file}: looks at a run share its error, and no look sees another's prompts."
    not_certified = [name for name in objective.constrained if name not in decided(objective)]
    if not_certified:
        note += f" Not certified, because they have no range: {', '.join(not_certified)}."
    summary = read_summary(file.parent.parent / SUMMARY)
    return "\n".join([note, *advice(summary or {})])


def _objective(config: Resolved) -> Objective:
    declared = get(config, "model.init_args.objective") or {}
    objective = Objective.declared(declared.get("init_args", declared))
    if not objective.compared:
        raise ConfigError(
            "Expected constraints to certify, but the objective enforces none on the task's signals, try role: "
            "constrain; the policy's own signals (kl, entropy) are measured in training alone."
        )
    return objective
