"""``python -m lightning_cgrpo export``: the policy of a checkpoint as a Hugging Face directory."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.errors import UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.policies import Policy

PREFIX = "policy."
"""Of the policy's weights in the checkpoint of a module."""


def main(argv: Sequence[str] | None = None) -> None:
    """The command.

    Raises:
        UserError: if the configuration, the checkpoint or the directory can't be used.
    """
    from lightning_cgrpo.cli.arguments import read_arguments

    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo export",
        description="Write the policy of a checkpoint as a directory that transformers loads.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--ckpt_path=last] --out DIR [--merge]",
        epilog="-c and --KEY=VALUE are those of the run, see `python -m lightning_cgrpo --help`. Every run keeps its "
        "configuration in config.yaml, beside its logs. See docs/huggingface.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="what to write; must be new or empty")
    # Not from the configuration: a run that was resumed keeps in it where it went on from.
    parser.add_argument("--ckpt_path", metavar="FILE", default="last", help="the checkpoint (default: the run's last)")
    parser.add_argument("--merge", action="store_true", help="add adapters to the weights, and write those")
    given, rest = parser.parse_known_args(argv)
    config, flags = read_arguments("export", rest)
    if flags:
        raise ConfigError(f"Expected no {flags[0]} for export, try it with fit.")
    if given.out.exists() and (not given.out.is_dir() or any(given.out.iterdir())):
        raise UserError(
            f"Expected --out to be a new or empty directory, but got '{given.out}', which has something in it, try "
            "another name."
        )
    export({**config, "ckpt_path": given.ckpt_path}, given.out, given.merge)


def export(config: Config, directory: Path, merge: bool = False) -> None:
    """Write the policy of a checkpoint.

    Args:
        config: of the run, merged and resolved, and `ckpt_path`, a file or "last".
        directory: new or empty.
        merge: see `CausalLMPolicy.save_pretrained`.

    Raises:
        UserError: the policy is no language model, or the checkpoint isn't there or is another policy's.
    """
    from lightning_cgrpo.cli.preparation import prepare

    prepare("export", config)
    policy = _policy(config)
    save = getattr(policy, "save_pretrained", None)
    if save is None:
        raise UserError(f"Expected a policy that is a language model, but got {type(policy).__name__}.")
    checkpoint = Path(config["ckpt_path"])
    update, weights = _read_checkpoint(checkpoint)
    policy.load()
    _put_weights(policy, weights, checkpoint)
    save(directory, merge)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(f"Wrote the policy after update {update}, of {checkpoint}, to {directory} ({size / 1e6:.1f} MB).")


def _policy(config: Config) -> Policy:
    """The policy of a configuration, as the run makes it, and nothing else of the run."""
    from jsonargparse import ArgumentError, ArgumentParser

    from lightning_cgrpo.cli.messages import explain
    from lightning_cgrpo.policies import Policy

    arguments: Any = config["model"].get("init_args") if isinstance(config["model"], dict) else None
    if not isinstance(arguments, dict) or "policy" not in arguments:
        raise ConfigError("Expected the configuration to have a model with a policy, but it has none.")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Policy, "policy")
    try:
        policy = parser.instantiate(parser.parse_object({"policy": arguments["policy"]})).policy
    except (ArgumentError, ValueError, TypeError) as error:
        raise ConfigError(explain(error)) from error
    assert isinstance(policy, Policy)
    return policy


def _read_checkpoint(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The number of updates, and the policy's weights by name."""
    import torch
    from lightning.fabric.utilities.load import _METADATA_FILENAME

    from lightning_cgrpo.sharded_checkpoints import read_weights

    sharded = path.is_dir()
    try:
        # Mapped: the optimizer's state, most of the file, is never read.
        file = path / _METADATA_FILENAME if sharded else path
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        state = read_weights(path, "state_dict.") if sharded else saved["state_dict"]
        update = int(saved["global_step"])
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        reason = first_line(error)
        raise UserError(
            f"Expected '{path}' to be a checkpoint of a run, but got {type(error).__name__}: {reason}."
        ) from None
    return update, {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}


def _put_weights(policy: Policy, weights: dict[str, Tensor], checkpoint: Path) -> None:
    """Give the policy the weights of a checkpoint, in the dtype that they were trained in."""
    own = policy.state_dict()
    different = [
        name
        for name in {**own, **weights}
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    ]
    if different:
        raise UserError(
            f"Expected '{checkpoint}' to hold the weights of the configuration's policy, but '{different[0]}' differs, "
            "try the configuration that it was trained with (config.yaml beside its logs)."
        )
    for name, parameter in policy.named_parameters():
        parameter.data = parameter.data.to(weights[name].dtype)
    policy.load_state_dict(weights)
