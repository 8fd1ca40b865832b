"""``python -m lightning_cgrpo``: reads the command line, and imports what the command needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import ConfigError
from lightning_cgrpo.errors import UserError, did_you_mean

RUNS = {
    "fit": "train a policy (the weights of reward and constraints adapt as it learns)",
    "validate": "measure rewards and behavior rates on the validation prompts",
    "test": "measure them on the test prompts",
    "predict": "write a policy's answers",
}
TOOLS = {
    "tiny-model": "make a small random language model, to try things with",
    "plan": "say what a run needs: memory of a GPU, tokens, traffic, operations",
    "study": "train variants with several seeds, compare and report them",
    "report": "draw figures and tables of runs, grouped by their configurations",
    "export": "write the policy of a checkpoint as a Hugging Face directory",
    "score": "score driving trajectories as NAVSIM v2 does (EPDMS)",
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
  python -m lightning_cgrpo fit -c configs/gridworld.yaml -c configs/ablations/gridworld/scalarized_rewards.yaml
  python -m lightning_cgrpo fit -c configs/gridworld.yaml --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt
  python -m lightning_cgrpo test -c configs/gridworld.yaml --ckpt_path=runs/gridworld/version_0/checkpoints/last.ckpt
  python -m lightning_cgrpo plan -c configs/paper/gsm8k_qwen2_5_1.5b.yaml --gpus 8
  python -m lightning_cgrpo study configs/studies/gsm8k.yaml
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
    from lightning_cgrpo.cli.command_line import main as run_command

    run_command(command, config, flags)


def _tool(name: str) -> Callable[[list[str]], None]:
    if name == "report":
        from lightning_cgrpo.reporting import command

        return command.main
    if name == "study":
        from lightning_cgrpo.studies import command as study

        return study.main
    if name == "plan":
        from lightning_cgrpo.planning import command as plan

        return plan.main
    if name == "export":
        from lightning_cgrpo.cli import export

        return export.main
    if name == "score":
        from lightning_cgrpo.navsim import command as score

        return score.main
    from lightning_cgrpo.policies.tiny import text as tiny

    return tiny.main


def run() -> None:
    """The entry point: an error is one line, or three with the file that has the traceback."""
    try:
        main(sys.argv[1:])
    except UserError as error:
        _end(str(error), 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from lightning_cgrpo.cli.messages import of_the_disk, unexpected

        message = of_the_disk(error) if isinstance(error, OSError) else None
        _end(message or unexpected(error), 2 if message else 1)


def _end(message: str, status: int) -> NoReturn:
    print(f"lightning_cgrpo: error: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    run()
