"""The command ``plan``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

from lightning_cgrpo.cli.arguments import read_arguments

EXAMPLES = """examples:
  python -m lightning_cgrpo plan -c configs/gsm8k.yaml
  python -m lightning_cgrpo plan -c configs/paper/gsm8k_qwen2_5_7b.yaml --model-config config.json --gpus 8 \\
      --trainer.strategy=fsdp2

-c and --KEY=VALUE are those of the run, see `python -m lightning_cgrpo --help`. Nothing of the model but its
config.json is read: of the configuration's model (a directory, or a name on the Hugging Face hub), or --model-config.
What is counted, and how well that agrees with what was measured, is in docs/plan.md.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``plan``."""
    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo plan",
        description="Estimate what a run needs: memory of a GPU, tokens, traffic between GPUs, and operations.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--gpus N] [--model-config FILE] [...]",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpus",
        metavar="N",
        type=_positive,
        help="GPUs (default: trainer.devices, or 1 where that is no number, of all machines)",
    )
    parser.add_argument(
        "--model-config", metavar="FILE", type=Path, help="a config.json, or a directory with one, for the model's own"
    )
    parser.add_argument(
        "--prompt-tokens",
        metavar="P",
        type=_positive,
        help="tokens of a prompt's text, its template included (default: the policy's max_prompt_tokens, or 512)",
    )
    parser.add_argument(
        "--answer-tokens",
        metavar="C",
        type=_positive,
        help="of an answer, or steps of an episode (default: all that are allowed)",
    )
    parser.add_argument(
        "--images", metavar="NxHxW", type=_images, help="images of a prompt, and their pixels, as 3x224x448"
    )
    parser.add_argument("--json", action="store_true", help="write JSON: bytes, tokens, operations")
    given, rest = parser.parse_known_args(argv)
    config, _ = read_arguments("plan", rest)
    # Imported here, because --help and misspelled keys must not wait for torch.
    from rich.console import Console

    from lightning_cgrpo.planning.plan import plan
    from lightning_cgrpo.planning.table import as_json, show

    options = vars(given)
    writes_json = options.pop("json")
    found = plan(config, **options)
    if writes_json:
        print(json.dumps(as_json(found), indent=1))
    else:
        show(found, Console())


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, but got '{text}'")
    return value


def _images(text: str) -> list[tuple[int, int]]:
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if found is None or not all(map(int, found.groups()[1:])):
        raise argparse.ArgumentTypeError(f"expected images like 3x224x448, but got '{text}'")
    number, height, width = map(int, found.groups())
    return [(height, width)] * number
