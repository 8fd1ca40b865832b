"""The command ``export``: a checkpoint's policy as a Hugging Face directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.place import find_checkpoint
from lightning_cgrpo.settings.configuration import Config, get, short_class

if TYPE_CHECKING:
    from lightning_cgrpo.run.manifest import Manifest


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``export``."""
    from lightning_cgrpo.cli.arguments import read_arguments

    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo export",
        description="Write the policy of a checkpoint as a directory that transformers loads.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--ckpt_path=FILE] --out DIR [--merge]",
        epilog="-c and --KEY=VALUE are those of the run, or -c its config.yaml, beside its logs. The checkpoint is by "
        "default the best that validation ranked, else the last. See docs/huggingface.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="what to write; must be new or empty")
    parser.add_argument("--merge", action="store_true", help="add adapters to the weights, and write those")
    options, rest = parser.parse_known_args(argv)
    config, _ = read_arguments("export", rest)
    beginning = find_checkpoint("export", config)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise UserError(
            f"Expected --out to be a new or empty directory, but got '{options.out}', which has something in it, try "
            "another name."
        )
    _export_policy(config, beginning, options.out, options.merge)


def _export_policy(config: Config, beginning: str | None, directory: Path, merge: bool) -> None:
    # Imported here, because --help and misspelled keys must not wait for torch.
    from lightning_cgrpo.cli.certify.policy_identity import identity, measuring
    from lightning_cgrpo.cli.loading import instantiate, put_weights, read_checkpoint, read_manifest
    from lightning_cgrpo.cli.preparation import prepare
    from lightning_cgrpo.policies.model_files import fingerprint
    from lightning_cgrpo.policies.policy import Policy
    from lightning_cgrpo.run.lineage import write_lineage

    prepare("export", config, beginning)
    policy: Policy = instantiate(get(config, "model.init_args") or {}, policy=Policy)["policy"]
    save = getattr(policy, "save_pretrained", None)
    if save is None:
        raise UserError(f"Expected a policy that is a language model, but got {type(policy).__name__}.")

    # The weights.
    checkpoint = Path(config["ckpt_path"])
    update, weights, base = read_checkpoint(checkpoint)
    policy_identity = identity(weights, measuring(config, base))
    put_weights(policy, weights, base, checkpoint)
    save(directory, merge)

    # The run that trained the policy: its prompts, for later certificates, and its model card.
    manifest = read_manifest(checkpoint)
    write_lineage(directory, manifest, fingerprint(directory), policy_identity, checkpoint.parent)
    _write_card(config, checkpoint, update, policy_identity, directory, manifest)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(f"Wrote the policy after update {update}, of {checkpoint}, to {directory} ({size / 1e6:.1f} MB).")


def _write_card(
    config: Config, checkpoint: Path, update: int, policy_identity: str, directory: Path, manifest: Manifest | None
) -> None:
    """Write a model card from the summary of the checkpoint's run, and the certificates of the exported policy.

    Args:
        policy_identity: `identity` of the exported policy, from weights and decoding.
    """
    from lightning_cgrpo.callbacks.model_card import CARD, write_card
    from lightning_cgrpo.run.checkpoints.files import written_in
    from lightning_cgrpo.run.looks import Ledger, certificates_of
    from lightning_cgrpo.run.register import Register
    from lightning_cgrpo.run.runs import read_record

    record = read_record(checkpoint.parent.parent / SUMMARY)
    (directory / CARD).unlink(missing_ok=True)  # peft's card, with gaps to fill
    if record is None:
        return
    objective = Objective.declared(get(config, "model.init_args.objective") or {})
    project = "" if manifest is None else manifest.project
    register = Register.of(project, checkpoint.parent)
    ledger = Ledger(register, written_in(checkpoint) or checkpoint.parent, manifest, {})
    looks = certificates_of(ledger.looks(), policy_identity, objective)
    base = get(config, "model.init_args.policy.init_args.model")
    method = short_class(get(config, "model"))
    rewards = ", ".join(objective.rewards)
    write_card(directory, base, method, record, update, rewards, looks)
