"""``python -m lightning_cgrpo``: reads the command line, and imports what the command needs."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any

from lightning_cgrpo.configuration import Config, ConfigError, build
from lightning_cgrpo.errors import UserError, did_you_mean
from lightning_cgrpo.objective import Objective
from lightning_cgrpo.signatures import check_keys

RUNS = {
    "fit": "train a policy (the weights of reward and constraints adapt as it learns)",
    "validate": "measure rewards and behavior rates on the validation prompts",
    "test": "measure them on the test prompts",
    "predict": "write a policy's answers",
}
TOOLS = {
    "tiny-model": "make a small random language model, to try things with",
    "plan": "say what a run needs: memory of a GPU, tokens, traffic, operations",
    "report": "draw figures and tables of runs, grouped by their configurations",
    "export": "write the policy of a checkpoint as a Hugging Face directory",
    "score": "score driving trajectories as NAVSIM v2 does (EPDMS)",
}
OPTIONS = {
    "fit": (),
    "validate": ("verbose",),
    "test": ("verbose",),
    "predict": ("return_predictions",),
    "export": (),
    "plan": (),
}

HELP = """usage: python -m lightning_cgrpo COMMAND [-c FILE]... [--KEY=VALUE]...

Constrained GRPO: state behavior rates, and let a Lagrangian do the weighting.

commands:
{commands}

options:
  -c FILE, --config FILE   a configuration; several are stacked, later ones change single values of earlier ones.
                           configs/... falls back to the packaged file of that name
  --KEY=VALUE              change a value, e.g. --trainer.max_steps=100 or --callbacks.multipliers=FixedWeights
  --print_config           print the configuration that would run
  --help                   (after a command) every setting of trainer, model and data

examples:
  python -m lightning_cgrpo fit -c configs/gridworld.yaml --trainer.max_steps=1500
  python -m lightning_cgrpo fit -c configs/gridworld.yaml -c configs/ablations/scalarized_rewards.yaml
  python -m lightning_cgrpo fit -c configs/gridworld.yaml --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt
  python -m lightning_cgrpo test -c configs/gridworld.yaml --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt
  python -m lightning_cgrpo plan -c configs/paper/gsm8k_qwen2_5_1.5b.yaml --gpus 8
  python -m lightning_cgrpo report runs --out report
  python -m lightning_cgrpo export -c configs/gsm8k.yaml --ckpt_path=last --out models/mine
  python -m lightning_cgrpo score --scenes cases --trajectories cases --out scores.json --render pictures
"""


def main(arguments: list[str]) -> None:
    """Run a command.

    Raises:
        UserError: if something that the user gave is wrong.
    """
    commands = {**RUNS, **TOOLS}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        listing = "\n".join(f"  {name:<12} {text}" for name, text in commands.items())
        print(HELP.format(commands=listing), end="")
        return
    if arguments[0] == "--version":
        from lightning_cgrpo import __version__

        print(__version__)
        return
    command, rest = arguments[0], arguments[1:]
    if command not in commands:
        raise ConfigError(f"Unknown command '{command}'.{did_you_mean(command, commands)} Try --help.")
    # A user's own classes and functions are found in the folder where the command runs, as with python -m.
    if "" not in sys.path:
        sys.path.insert(0, "")
    if command in TOOLS:
        _tool(command)(rest)
        return
    config, flags = read_arguments(command, rest)
    from lightning_cgrpo.cli import main as run_command

    run_command(command, config, flags)


def read_arguments(command: str, arguments: list[str]) -> tuple[Config, list[str]]:
    """The configuration that files and overrides make, checked for misspelled keys, and flags for jsonargparse."""
    files, overrides, flags = [], [], []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("-"):
            raise ConfigError(f"Expected --KEY=VALUE or -c FILE, but got '{argument}'.")
        key, equals, value = argument.lstrip("-").partition("=")
        if key in ("help", "h", "print_config") or key.endswith(".help"):
            flags.append(argument)
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise ConfigError(f"Expected a value for {argument}, as in {argument}=VALUE, but got none.")
            value = queue.pop(0)
        if key in ("c", "config"):
            files.append(value)
        else:
            overrides.append((key, value))
    config = build(files, overrides)
    if not flags and "model" not in config:
        raise ConfigError("Expected a configuration with a model, but got none, try -c configs/gridworld.yaml.")
    objective = _objective(config)
    if objective is not None:
        # A constraint is removed like a callback, by null.
        kept = {name: c for name, c in (objective.get("constraints") or {}).items() if c is not None}
        objective["constraints"] = kept
    check_keys(config, OPTIONS[command])
    if objective is not None:
        Objective.declared(objective)
    return config, flags


def _objective(config: Config) -> Config | None:
    """The part of a configuration that declares the objective, if there is one."""
    part: Any = config
    for key in ("model", "init_args", "objective"):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) and "class_path" not in part else None


def _tool(name: str) -> Callable[[list[str]], None]:
    if name == "report":
        from lightning_cgrpo.reporting import command

        return command.main
    if name == "plan":
        from lightning_cgrpo.planning import command as plan

        return plan.main
    if name == "export":
        from lightning_cgrpo import export

        return export.main
    if name == "score":
        from lightning_cgrpo.tasks.driving import command as score

        return score.main
    from lightning_cgrpo.policies import tiny

    return tiny.main


def run() -> None:
    """The entry point: errors of the user's are one line, and exit with 2. So is a disk that is full."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"lightning_cgrpo: error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(
            f"lightning_cgrpo: error: Expected room on the disk, but got: {error}; checkpoints that were written are "
            "whole, try to free some, and --ckpt_path=last.",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
