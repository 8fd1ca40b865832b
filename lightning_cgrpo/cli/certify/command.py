"""The command ``certify``: one look at prompts that neither trained nor selected the policy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.advice import advice
from lightning_cgrpo.run.checkpoints.files import is_remote, written_in
from lightning_cgrpo.run.place import find_checkpoint
from lightning_cgrpo.settings.configuration import ConfigError, Resolved, get

if TYPE_CHECKING:
    from lightning_cgrpo.run.looks import Ledger
    from lightning_cgrpo.run.manifest import Manifest
    from lightning_cgrpo.run.register import Register

STATUS = {"certified": 0, "refuted": 3, "undecided": 4}
"""Exit status by decision; 1 and 2 are errors."""
CONFIDENCE = 0.95
EARLIER = "certificates.json"
"""Beside the checkpoints, where earlier versions wrote looks."""
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
        "recorded verdict. Looks along a lineage share the error 1 - confidence. See docs/verdicts.md.",
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
    objective = _read_objective(config)
    if objective.look is not None:
        options.prompts = options.prompts or objective.look.prompts
        options.confidence = options.confidence or objective.look.confidence
    beginning = find_checkpoint("certify", config)
    certificate = _certify(config, beginning, objective, options.prompts, options.confidence)
    if certificate is None:  # another process ends with the status
        return
    status = STATUS[certificate["decision"]]
    if status:
        sys.exit(status)


def _certify(
    config: Resolved, beginning: str | None, objective: Objective, prompts: int | None, confidence: float | None
) -> dict[str, Any] | None:
    """The recorded or new certificate, printed; None on all processes but the first."""
    from lightning.pytorch.utilities import rank_zero_only

    from lightning_cgrpo.callbacks.run_manifest import library_versions
    from lightning_cgrpo.cli.certify.certificate_table import print_certificate
    from lightning_cgrpo.cli.certify.look import sample_of
    from lightning_cgrpo.cli.certify.policy_identity import data_of, identity, measuring, precision_of
    from lightning_cgrpo.cli.loading import file_stamps, hold_checkpoint, read_checkpoint, read_manifest
    from lightning_cgrpo.cli.preparation import prepare
    from lightning_cgrpo.run.certificate import certificate_of
    from lightning_cgrpo.run.looks import Ledger, recorded_look
    from lightning_cgrpo.run.register import Register

    prepare("certify", config, beginning)
    if is_remote(config["ckpt_path"]):
        raise ConfigError(f"Expected a checkpoint on this machine, but got {config['ckpt_path']}.")
    checkpoint = Path(config["ckpt_path"])
    # A running `fit` may replace the file meanwhile, so a second name keeps its present content.
    with hold_checkpoint(checkpoint) as kept:
        # The policy, and the question to it.
        before = file_stamps(kept)
        manifest = read_manifest(kept)
        data, digest = data_of(config)
        _check_data(manifest, data, checkpoint)
        update, weights, base = read_checkpoint(kept)
        question = {
            "constraints": {name: asdict(constraint) for name, constraint in objective.decided.items()},
            "data": data | {"test prompts": digest},
            "confidence": confidence or CONFIDENCE,
            "prompts": prompts,
            "precision": precision_of(config),
            "versions": library_versions(),
        }
        policy = identity(weights, measuring(config, base))
        about = {"checkpoint": str(checkpoint), "update": update, "policy": policy, "question": question}
        project = "" if manifest is None else manifest.project
        register = Register.of(project, checkpoint.parent)
        ledger = Ledger(register, written_in(checkpoint) or checkpoint.parent, manifest, about)

        # The same question to the same policy gets its recorded answer.
        earlier = recorded_look(ledger.looks(), policy, question)
        if earlier is not None:
            if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
                return None
            note = _explain_look(register, ledger, checkpoint, earlier)
            taken = f"Nothing was sampled, because the look was taken on {earlier['at'][:10]}."
            print_certificate(earlier, f"{taken} {note}")
            return earlier

        # A new look, at prompts that neither trained nor served an earlier look.
        sampled = sample_of(config.replaced(ckpt_path=str(kept)), objective, ledger)
        if sampled is None:
            return None
        asked, sample = sampled
        if file_stamps(kept) != before:  # under both names, unless the file was replaced
            raise ConfigError(
                f"Expected '{checkpoint}' to stay as it was while its policy answered, but another program wrote into "
                "it, so the look is spent, try a copy of the file."
            )
        look = ledger.end(certificate_of(sample, objective, asked))
    print_certificate(look, _explain_look(register, ledger, checkpoint, look))
    return look


def _check_data(manifest: Manifest | None, data: dict[str, Any], checkpoint: Path) -> None:
    """Refuse other data than the run's own, whose settings say which prompts trained and selected the policy.

    Args:
        data: settings that decide the test prompts.
    """
    from lightning.pytorch.utilities import rank_zero_only

    from lightning_cgrpo.run.manifest import shown
    from lightning_cgrpo.settings.effects import PROMPTS_PLACES, SAME_TEST_PROMPTS
    from lightning_cgrpo.settings.settings import MADE, differing

    if manifest is None or manifest.settings is None or MADE in manifest.settings:
        rank_zero_only(print)(
            "The checkpoint does not tell the data of its run, so this configuration says which prompts trained and "
            "selected the policy."
        )
        return
    # The settings of the run's data, without those that leave its test prompts the same.
    run_data = {}
    left_out = (*SAME_TEST_PROMPTS, *PROMPTS_PLACES)
    for key, value in manifest.settings.items():
        if key.partition(".")[0] == "data" and (key in data or key not in left_out):
            run_data[key] = value
    for key, (before, now) in differing(run_data, data).items():
        if key == CLUSTER_KEY:
            continue  # which prompts belong together may be found out after training
        raise ConfigError(
            "Expected the data of the checkpoint's run, to know which prompts trained and selected the policy, but got "
            f"another {key}: {shown(before)} -> {shown(now)}, try -c {checkpoint.parent.parent / 'config.yaml'}."
        )


def _explain_look(register: Register, ledger: Ledger, checkpoint: Path, look: Mapping[str, Any]) -> str:
    """The lines below a certificate: its assumptions, the prompts of other looks, and the advice of the run's card."""
    from lightning_cgrpo.run.register import EDITED
    from lightning_cgrpo.run.runs import read_record

    # The assumptions, and the other policies that were measured on these prompts.
    note = f"Assumes that {'; that '.join(look['assumptions'])}.\n"
    note += f"Registered in {register.file}: looks along a lineage share its error, and no look sees another's prompts."
    company = look["company"]
    if company["here"] > 1 or company["tested"]:
        note += f" {company['here']} of {company['policies']} policies of this project were measured on these prompts"
        if company["tested"]:
            note += f", {company['tested']} of them by `test`"
        note += "."
    unended = sum("decision" not in other for other in ledger.looks())
    if unended:
        looks = "look" if unended == 1 else "looks"
        note += f" {unended} {looks} began without an end, and counted."

    # Prompts that may have trained the policy without a record.
    manifest = ledger.manifest
    if manifest is not None and not manifest.start_known:
        note += " The prompts that trained the starting model are not known."
    if manifest is not None and not manifest.used_known:
        note += " The prompts that trained are not known, because an earlier version wrote their fingerprints."
    if any((folder / EARLIER).is_file() for folder in {checkpoint.parent, checkpoint.parent.parent, ledger.place}):
        note += f" Looks in {EARLIER}, by an earlier version, neither spent error nor keep their prompts out."

    # Limits of the verdict.
    note += f" Not certified: {', '.join(look['not_certified'])}."
    if look["not_as_in_training"]:
        note += f" Not as in training: {'; '.join(look['not_as_in_training'])}."
    edited = [f"line {number}" for number, entry in enumerate(register.entries(), start=1) if EDITED in entry]
    if edited:
        note += f" Edited by hand, or after a removed line: {', '.join(edited)}."
    record = read_record(checkpoint.parent.parent / SUMMARY)
    advice_lines = [] if record is None else advice(record)
    return "\n".join([note, *advice_lines])


def _read_objective(config: Resolved) -> Objective:
    """The configuration's objective, if it has a constraint that can be certified.

    Raises:
        ConfigError: no such constraint.
    """
    declared = get(config, "model.init_args.objective") or {}
    objective = Objective.declared(declared.get("init_args", declared))
    if not objective.compared:
        raise ConfigError(
            "Expected constraints to certify, but the objective enforces none on the task's signals, try role: "
            "constrain; the policy's own signals (kl, entropy) are measured in training alone."
        )
    return objective
