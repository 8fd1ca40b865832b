"""The command ``certify``: one look at prompts that neither trained nor selected the policy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.configuration import Config, ConfigError, get
from lightning_cgrpo.cli.run_folders import find_checkpoint
from lightning_cgrpo.objective.objective import Objective

STATUS = {"certified": 0, "refuted": 3, "undecided": 4}
"""Exit status by decision; 1 and 2 are errors."""
CONFIDENCE = 0.95
FREE = ("data.test_path", "data.prompts_per_update")
"""Settings of the data that may differ from the run's."""


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
    parser.add_argument("--prompts", metavar="N", type=int, help="prompts (default: as many as test prompts)")
    parser.add_argument("--confidence", metavar="P", type=float, help=f"over all constraints (default: {CONFIDENCE})")
    options, rest = parser.parse_known_args(argv)
    if options.prompts is not None and options.prompts < 1:
        raise ConfigError(f"Expected --prompts to be at least 1, but got {options.prompts}.")
    if options.confidence is not None and not 0.5 <= options.confidence < 1:
        raise ConfigError(f"Expected --confidence from 0.5 to below 1, but got {options.confidence}, try 0.95.")
    config, _ = read_arguments("certify", rest)
    objective = _objective(config)
    beginning = find_checkpoint("certify", config)
    certificate = _certificate(config, beginning, objective, options.prompts, options.confidence)
    if certificate is None:  # another process tells
        return
    if STATUS[certificate["decision"]]:
        sys.exit(STATUS[certificate["decision"]])


def _certificate(
    config: Config, beginning: str | None, objective: Objective, prompts: int | None, confidence: float | None
) -> dict[str, Any] | None:
    """The recorded or new certificate, printed; None on all processes but the first."""
    import torch
    from filelock import FileLock
    from lightning.pytorch.utilities import rank_zero_only

    from lightning_cgrpo.cli.certificate import Asked, decided, look, show
    from lightning_cgrpo.cli.loading import held, read_manifest
    from lightning_cgrpo.cli.looks import (
        FILE,
        check_writable,
        error_share,
        looks_at,
        record,
        recorded,
        used_prompts,
    )
    from lightning_cgrpo.cli.method import method_of
    from lightning_cgrpo.cli.preparation import prepare

    prepare("certify", config, beginning)
    checkpoint = Path(config["ckpt_path"])
    _check_data(config, checkpoint)
    folder = checkpoint.parent
    first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    if first:
        check_writable(folder)
    # A running `fit` may replace the file, whose first content is what counts. One look at a time, because looks share
    # their error and their prompts.
    lock = FileLock(folder / f".{FILE}.lock") if first else nullcontext()
    with lock, held(checkpoint) as kept:
        # Which policy is asked what.
        update, policy = _policy(kept, config)
        question = {
            "constraints": {name: asdict(constraint) for name, constraint in decided(objective).items()},
            "data": method_of(config).get("data"),
            "confidence": confidence,
            "prompts": prompts,
        }

        # The same question to the same policy has its answer.
        manifest = read_manifest(kept)
        lineage = () if manifest is None else manifest.lineage
        looks = looks_at(folder, lineage)
        earlier = recorded(looks, policy, question)
        note = _note(folder / FILE, objective)
        if earlier is not None:
            if not first:
                return None
            show(earlier, f"Nothing was sampled, because the look was taken on {earlier['at'][:10]}. {note}")
            return earlier

        # A new look, at prompts that neither trained nor served an earlier look.
        trained = torch.zeros(0, dtype=torch.int64) if manifest is None else manifest.used
        asked = Asked(prompts, confidence or CONFIDENCE, len(looks) + 1, used_prompts(looks, trained))
        seen = look({**config, "ckpt_path": str(kept)}, objective, asked)
        if not first:
            return None
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
        record(folder, certificate)
    show(certificate, note)
    return certificate


def _policy(checkpoint: Path, config: Config) -> tuple[int, str]:
    """The checkpoint's update, and the identity of its policy: the weights, and what else makes answers and signals."""
    from lightning_cgrpo.cli.loading import read_checkpoint
    from lightning_cgrpo.cli.looks import identity
    from lightning_cgrpo.cli.method import method_of

    update, weights, base = read_checkpoint(checkpoint)
    method = method_of(config)
    parts = {part: get(method, f"model.init_args.{part}") for part in ("policy", "sampler", "task")}
    if base is not None:
        parts["base"] = base
    return update, identity(weights, parts)


def _note(file: Path, objective: Objective) -> str:
    """The line below a certificate."""
    from lightning_cgrpo.cli.certificate import decided

    note = f"Recorded in {file}: looks at a run share its error, and no look sees another's prompts."
    not_certified = [name for name in objective.constrained if name not in decided(objective)]
    if not_certified:
        note += f" Not certified, because they have no range: {', '.join(not_certified)}."
    return note


def _objective(config: Config) -> Objective:
    declared = get(config, "model.init_args.objective") or {}
    objective = Objective.declared(declared.get("init_args", declared))
    if not objective.compared:
        raise ConfigError(
            "Expected constraints to certify, but the objective enforces none on the task's signals, try role: "
            "constrain; the policy's own signals (kl, entropy) are measured in training alone."
        )
    return objective


def _check_data(config: Config, checkpoint: Path) -> None:
    """The run's own data settings say which prompts trained and selected the policy."""
    from lightning_cgrpo.checkpoints.files import is_remote
    from lightning_cgrpo.cli.method import method_of
    from lightning_cgrpo.cli.run_folders import configuration_beside, differences

    if is_remote(checkpoint):
        raise ConfigError(
            f"Expected a checkpoint on this machine, beside which the look is recorded, but got {checkpoint}."
        )
    kept = configuration_beside(checkpoint)
    if kept is None:
        return
    before, now = (method_of(part).get("data") for part in (kept, config))
    changed = [text for text in differences(before, now, "data") if not text.startswith(FREE)]
    if changed:
        raise ConfigError(
            "Expected the data of the checkpoint's run, to know which prompts trained and selected the policy, but got "
            f"another {changed[0]}, try -c {checkpoint.parent.parent / 'config.yaml'}."
        )
