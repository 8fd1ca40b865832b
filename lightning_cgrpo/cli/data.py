"""The command ``data``: what a configuration's splits need and what of it is there, before any training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.errors import UserError, names_a_remedy

if TYPE_CHECKING:
    from lightning_cgrpo.core.prompts.inventory import Pieces
    from lightning_cgrpo.datamodules.base import GroupDataModule

SHOWN = 20
"""Lines of faults on the screen, for each kind of pieces."""
LETTERS = 4_000
"""Longest part of a rendered prompt that is shown on the screen."""
AT_ONCE = 256
"""Prompts tokenized at once."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``data``.

    Raises:
        UserError: (after printing) a run would not start with this data.
    """
    from lightning_cgrpo.cli.arguments import read_arguments

    parser = argparse.ArgumentParser(
        prog="python -m lightning_cgrpo data",
        description="List the files, scenes and prompts that a configuration's splits need, with every missing or "
        "corrupt piece. All files are read.",
        usage="%(prog)s -c FILE... [--KEY=VALUE]... [--out FILE]",
        epilog="The exit status is 2 if a run would not start with this data. See docs/driving_data.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all lines, of which the screen shows some")
    options, rest = parser.parse_known_args(argv)
    config, _ = read_arguments("data", rest)
    # Imported here, because --help must not wait for torch.
    from lightning.pytorch import LightningDataModule, LightningModule

    from lightning_cgrpo.cli.loading import instantiate
    from lightning_cgrpo.cli.preparation import prepare
    from lightning_cgrpo.datamodules.base import NUMBERS, GroupDataModule

    prepare("data", config | {"ckpt_path": None})
    run = instantiate(config, data=LightningDataModule, model=LightningModule)
    data, module = run["data"], run["model"]
    if not isinstance(data, GroupDataModule):
        raise UserError(f"Expected data with prompts, but got {type(data).__name__}, try a GroupDataModule.")
    every: dict[str, list[Pieces]] = {split: _pieces(data, module, split) for split in NUMBERS}
    _show(every)
    if (rendered := _rendered(data, module)) is not None:
        print(rendered)
    lines = [f"{split}: {line}" for split, pieces in every.items() for kind in pieces for line in kind.faults]
    if options.out is not None:
        options.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")
        print(f"Wrote {len(lines)} lines to {options.out}.")
    lacking = [f"{kind.kind} of {split}" for split, pieces in every.items() for kind in pieces if not kind.enough]
    if lacking:
        raise UserError(
            f"Expected the data to be whole, but {', '.join(lacking)} are missing or corrupt, so that a run refuses to "
            "start, try to mend the files above, or for NAVSIM data.scenes.partial=true to train on what is there."
        )


def _pieces(data: GroupDataModule, module: Any, split: Any) -> list[Pieces]:
    """A split's pieces; a split that can't be read is a piece with the error."""
    from lightning_cgrpo.core.prompts.inventory import Pieces

    try:
        pieces = data.inventory(split)
        if pieces and all(kind.enough for kind in pieces):
            pieces += _lengths(data, module, split)
    except ValueError as error:
        if not names_a_remedy(error):
            raise
        return [Pieces("sources", 1, (str(error),))]
    return pieces


def _lengths(data: GroupDataModule, module: Any, split: Any) -> list[Pieces]:
    """Tokens of the prompts for a language model: of all rows in memory, else of the first prompt."""
    import torch

    from lightning_cgrpo.core.prompts.inventory import Pieces
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.policies.rendering import variables_of

    policy = getattr(module, "policy", None)
    if not isinstance(policy, CausalLMPolicy):
        return []
    source = data.source(split)
    kind = "lengths of prompts" if source.rows is not None else "length of the first prompt"
    try:
        policy.load()
    except UserError as error:
        return [Pieces(kind, 0, note=f"not measured: {str(error)[:120]}")]
    room = policy.room(module.sampler.longest)
    measured = range(len(source)) if source.rows is not None else range(1)
    lengths: list[int] = []
    for first in range(0, len(measured), AT_ONCE):
        index = torch.tensor(measured[first : first + AT_ONCE])
        groups = source.groups(index)
        variables = variables_of(groups.columns, len(groups))
        inputs = policy.read_prompts(
            groups.column("prompt", "data"), index, getattr(module.sampler, "tools", ()), variables
        )
        lengths += inputs["prompt_mask"].sum(-1).tolist()
    long = tuple(f"prompt {row}: {length:,} tokens" for row, length in enumerate(lengths) if length > room)
    return [Pieces(kind, len(lengths), long, f"at most {max(lengths):,} tokens, room for {room:,}")]


def _rendered(data: GroupDataModule, module: Any) -> str | None:
    """The first training prompt as a language model reads it, and the first demonstration, in escapes; else None."""
    import torch

    from lightning_cgrpo.core.errors import printable
    from lightning_cgrpo.modules.supervised import SupervisedFineTuning, demonstration_rollouts
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.samplers.generation import GenerationSampler

    policy, sampler = getattr(module, "policy", None), getattr(module, "sampler", None)
    if not isinstance(policy, CausalLMPolicy) or not isinstance(sampler, GenerationSampler) or not policy.stop_tokens:
        return None
    try:
        source = data.source("train")
        read = sampler.first_prompt(policy, source)["prompt_ids"][0].tolist()
        lines = ["The first training prompt, as the policy reads it:", _text(policy, read)]
        if isinstance(module, SupervisedFineTuning):
            made = demonstration_rollouts(policy, source.groups(torch.zeros(1, dtype=torch.int64)), sampler.tools)
            trained = made.actions[0, 0][made.mask[0, 0]].tolist()
            lines += ["The first demonstration's trained tokens:", _text(policy, trained)]
    except UserError as error:
        lines = ["The first training prompt can't be shown:", str(error)]
    return "\n".join([*(printable(line) for line in lines), f"Answers end at {printable(sampler.ends(policy))}."])


def _text(policy: Any, tokens: list[int]) -> str:
    """The text of tokens, with an image's token once."""
    image = getattr(policy, "image_token", None)
    kept = [token for place, token in enumerate(tokens) if token != image or tokens[place - 1 : place] != [image]]
    text = policy.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text if len(text) <= LETTERS else f"{text[: LETTERS // 2]} [...] {text[-LETTERS // 2 :]}"


def _show(every: dict[str, list[Pieces]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from lightning_cgrpo.core.errors import printable
    from lightning_cgrpo.core.output import print_table

    table = Table(box=SIMPLE_HEAD, title="Data")
    table.title_justify = "left"
    for head in ("split", "pieces", "expected", "present", "missing or corrupt"):
        table.add_column(head, justify="left" if head in ("split", "pieces") else "right", no_wrap=True)
    for split, pieces in every.items():
        for kind in pieces:
            numbers = (f"{number:,}" for number in (kind.expected, kind.present, len(kind.faults)))
            table.add_row(split, kind.kind, *numbers)
    print_table(table)
    for split, pieces in every.items():
        for kind in pieces:
            if kind.note:
                print(f"- {split}, {kind.kind}: {printable(kind.note)}")
            for line in kind.faults[:SHOWN]:
                print(f"- {split}: {printable(line)}")
            if (more := len(kind.faults) - SHOWN) > 0:
                print(f"- {split}: {more:,} more {kind.kind}, which --out FILE lists")
