"""``python -m lightning_cgrpo``: runs a command, and imports only its modules."""

from __future__ import annotations

import difflib
import gc
import importlib
import io
import os
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.core.errors import UserError, did_you_mean, names_a_remedy, printable
from lightning_cgrpo.core.stdlib_first import stdlib_first
from lightning_cgrpo.run.place import find_checkpoint
from lightning_cgrpo.settings.configuration import Config, ConfigError, get

RUNS = {
    "fit": "train a policy (the weights of reward and constraints adapt as it learns)",
    "validate": "measure rewards and behavior rates on the validation prompts",
    "test": "measure rewards and behavior rates on the test prompts",
    "predict": "write a policy's answers",
}
TOOLS = {
    "configs": ("lightning_cgrpo.cli.configs", "list the packaged configurations, or copy one to start from"),
    "tiny-model": ("lightning_cgrpo.cli.tiny_model", "make a small random language model, for first trials"),
    "data": ("lightning_cgrpo.cli.data", "list what a configuration's data needs and what is missing, before a run"),
    "study": ("lightning_cgrpo.cli.study.command", "train variants with several seeds, compare and report them"),
    "report": (
        "lightning_cgrpo.cli.report.command",
        "draw figures and tables of runs by configuration",
    ),
    "certify": (
        "lightning_cgrpo.cli.certify.command",
        "decide with 95 % confidence whether a policy meets its thresholds",
    ),
    "export": ("lightning_cgrpo.cli.export", "write the policy of a checkpoint as a Hugging Face directory"),
}
"""Modules with a `main(arguments)`, and their lines in the help."""
OUTPUT_CLOSED = 141
"""The exit status of a program whose output nobody reads any more: 128 + SIGPIPE."""
ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
"""Environment variables with settings of PyTorch's memory on a GPU."""
PUSH = "model.init_args.sampler.init_args.engine.init_args.push"
SYNONYMS = {"train": "fit", "eval": "test", "evaluate": "test", "generate": "predict", "verify": "certify"}
"""Commands under the names of other programs."""
HELP = """usage: python -m lightning_cgrpo COMMAND [-c FILE]... [--KEY=VALUE]...

Constrained GRPO: state behavior rates, and let a Lagrangian do the weighting.

commands:
{commands}

options:
  -c FILE, --config FILE   a configuration; several are stacked, later ones change single values of earlier ones.
                           configs/... falls back to the packaged file of that name
  --KEY=VALUE              change a value, e.g. --trainer.max_steps=100 or --callbacks.multipliers=FixedWeights
  --print_config           print the configuration that would run
  --help                   (after a command) the options of the command

examples:
  python -m lightning_cgrpo fit -c configs/gridworld.yaml --trainer.max_steps=1500
  python -m lightning_cgrpo fit -c configs/gridworld.yaml -c configs/ablations/gridworld/scalarized_rewards.yaml
  python -m lightning_cgrpo fit -c configs/gridworld.yaml --ckpt_path=auto
  python -m lightning_cgrpo test -c configs/gridworld.yaml
  python -m lightning_cgrpo certify -c configs/gridworld.yaml --prompts 5000
  python -m lightning_cgrpo study configs/studies/gsm8k.yaml
  python -m lightning_cgrpo report runs --out report
  python -m lightning_cgrpo export -c configs/gsm8k.yaml --out models/mine
"""

RUN_HELP = """usage: python -m lightning_cgrpo {command} -c FILE [-c FILE]... [--KEY=VALUE]...

{purpose}.

often used:
  --ckpt_path={checkpoint:<23}the run's checkpoint; also {others}, or a file
  --seed_everything=1                the seed of prompts, answers and random weights
  --trainer.accelerator=auto         cpu or cuda
  --trainer.devices=2                processes; --trainer.strategy=ddp or fsdp2
{options}
  --callbacks.NAME=null              removes a callback

all settings:
  --print_config                     with the files: every value that would run
  --model.help=ConstrainedGRPO       arguments of a class; also --data.help=CLASS
  --help=all                         every setting of Lightning's trainer

docs/configuration.md explains how files and settings combine.
"""
FIT_OPTIONS = """\
  --trainer.max_steps=100            updates
  --trainer.val_check_interval=20    updates between validations
  --model.group_size=16              answers per prompt
  --model.objective.constraints.NAME.at_most=0.01
  --data.prompts_per_update=8        prompts per update"""
EVALUATION_OPTIONS = """\
  --model.eval_group_size=4          answers per prompt
  --data.eval_prompts=64             prompts per batch"""


def main(arguments: list[str]) -> None:
    """Run the command in the first argument."""
    commands = RUNS | {name: purpose for name, (_, purpose) in TOOLS.items()}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        listing = "\n".join(f"  {name:<12} {purpose}" for name, purpose in commands.items())
        print(HELP.format(commands=listing), end="")
        return
    if arguments[0] == "--version":
        from lightning_cgrpo import __version__

        print(__version__)
        return
    command, *rest = arguments
    if command not in commands:
        hint = _hint_at_command(command, commands)
        raise ConfigError(f"Unknown command '{command}'.{hint} Try --help.")
    _prepare_imports()
    if command in TOOLS:
        module_name, _ = TOOLS[command]
        importlib.import_module(module_name).main(rest)
        return
    if {"-h", "--help"} & set(rest):
        _print_run_help(command)
        return
    config, flags = read_arguments(command, rest)
    beginning = find_checkpoint(command, config)
    _grow_segments(config)
    gc.disable()  # imported modules stay, and searches for garbage among them would take a second
    try:
        from lightning_cgrpo.cli.command_line import main as run_command
    finally:
        gc.enable()
    run_command(command, config, flags, beginning)


def _prepare_imports() -> None:
    """Make users' own classes importable, and set environment variables that libraries read when they are imported."""
    # Users' own classes lie in the folder where the command runs, as with python -m.
    if "" not in sys.path and os.getcwd() not in sys.path:
        stdlib_first("")
    # Threads that spin while they wait would take the cores from other processes, such as the worker that makes
    # prompts.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a line per shard of weights in a log


def _print_run_help(command: str) -> None:
    """Print the help of fit, validate, test or predict."""
    purpose = RUNS[command][0].upper() + RUNS[command][1:]
    if command == "fit":
        settings = {
            "options": FIT_OPTIONS,
            "checkpoint": "last",
            "others": "best, auto (the newest, or a new run)",
        }
    else:
        settings = {"options": EVALUATION_OPTIONS, "checkpoint": "best", "others": "last, null (none)"}
    print(RUN_HELP.format(command=command, purpose=purpose, **settings), end="")


def _grow_segments(config: Config) -> None:
    """Let PyTorch's memory on a GPU grow in place, because answers of other lengths would leave holes in fixed blocks.

    A user's own settings stand. `IPCPush` hands out blocks that do not grow. Torch reads the setting later.
    """
    pushes_by_ipc = "IPCPush" in str(get(config, PUSH))
    if not pushes_by_ipc and not ALLOCATOR.intersection(os.environ):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _hint_at_command(word: str, commands: Iterable[str]) -> str:
    """A hint such as `` Did you mean 'fit'?``, also for a misspelled synonym."""
    similar = difflib.get_close_matches(word, [*commands, *SYNONYMS], n=1)
    if not similar:
        return did_you_mean(word, commands)
    return did_you_mean(SYNONYMS.get(similar[0], similar[0]), commands)


def run() -> None:
    """The entry point: prints one line for a user's error, three for an unexpected error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # an output that was replaced by a terminal
            sys.stdout.reconfigure(errors="replace")  # a λ that the output's encoding lacks must not end training
    try:
        main(sys.argv[1:])
        sys.stdout.flush()  # a closed pipe may show only here
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends so where nobody reads its output
            sys.exit(OUTPUT_CLOSED)
        raise
    except UserError as error:
        _exit_with(str(error), 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and output_is_closed():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest, which Python flushes
            sys.exit(OUTPUT_CLOSED)
        if names_a_remedy(error):
            _exit_with(str(error), 2)
        from lightning_cgrpo.cli.messages import disk_message, of_a_lost_process, unexpected_error, wandb_message

        if isinstance(error, OSError):
            message = disk_message(error)
        else:
            message = of_a_lost_process(error) or wandb_message(error)
        if message:
            _exit_with(message, 2)
        _exit_with(unexpected_error(error), 1)


def output_is_closed() -> bool:
    """True if nobody reads standard output any more, as after ``fit | head``."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _exit_with(message: str, status: int) -> NoReturn:
    """Print an error message, and end the program with a status."""
    lines = [printable(line) for line in f"lightning_cgrpo: error: {message}".split("\n")]
    print("\n".join(lines), file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    run()
