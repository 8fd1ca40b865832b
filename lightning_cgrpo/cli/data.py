"""The command ``data``: list the pieces that a configuration's splits need and that are missing, before training."""

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
    inventory: dict[str, list[Pieces]] = {split: _list_pieces(data, module, split) for split in NUMBERS}
    _print_inventory(inventory)
    first_prompt = _render_first_prompt(data, module)
    if first_prompt is not None:
        print(first_prompt)

    fault_lines: list[str] = []
    lacking: list[str] = []
    for split, pieces in inventory.items():
        for piece in pieces:
            fault_lines += [f"{split}: {fault}\n" for fault in piece.faults]
            if not piece.enough:
                lacking.append(f"{piece.kind} of {split}")
    if options.out is not None:
        options.out.write_text("".join(fault_lines), encoding="utf-8", errors="backslashreplace")
        print(f"Wrote {len(fault_lines)} lines to {options.out}.")
    if lacking:
        raise UserError(
            f"Expected the data to be whole, but {', '.join(lacking)} are missing or corrupt, so that a run refuses to "
            "start, try to mend the files above, or for NAVSIM data.scenes.partial=true to train on what is there."
        )


def _list_pieces(data: GroupDataModule, module: Any, split: Any) -> list[Pieces]:
    """A split's pieces; a split that can't be read is a piece with the error."""
    from lightning_cgrpo.core.prompts.inventory import Pieces

    try:
        pieces = data.inventory(split)
        if pieces and all(kind.enough for kind in pieces):
            pieces += _measure_lengths(data, module, split)
    except ValueError as error:
        if not names_a_remedy(error):
            raise
        return [Pieces("sources", 1, (str(error),))]
    return pieces


def _measure_lengths(data: GroupDataModule, module: Any, split: Any) -> list[Pieces]:
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
    tools = getattr(module.sampler, "tools", ())
    measured = range(len(source)) if source.rows is not None else range(1)
    lengths: list[int] = []
    for first in range(0, len(measured), AT_ONCE):
        index = torch.tensor(measured[first : first + AT_ONCE])
        groups = source.groups(index)
        variables = variables_of(groups.columns, len(groups))
        inputs = policy.read_prompts(groups.column("prompt", "data"), index, tools, variables)
        lengths += inputs["prompt_mask"].sum(-1).tolist()  # mask: [prompts, tokens]
    too_long = tuple(f"prompt {row}: {length:,} tokens" for row, length in enumerate(lengths) if length > room)
    return [Pieces(kind, len(lengths), too_long, f"at most {max(lengths):,} tokens, room for {room:,}")]


def _render_first_prompt(data: GroupDataModule, module: Any) -> str | None:
    """The first training prompt as a language model reads it, and the first demonstration, in escapes; else None."""
    import torch

    from lightning_cgrpo.core.errors import printable
    from lightning_cgrpo.modules.supervised import SupervisedFineTuning, demonstration_rollouts
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.samplers.generation import GenerationSampler

    policy = getattr(module, "policy", None)
    sampler = getattr(module, "sampler", None)
    if not isinstance(policy, CausalLMPolicy) or not isinstance(sampler, GenerationSampler) or not policy.stop_tokens:
        return None
    try:
        source = data.source("train")
        # prompt_ids: [prompts, tokens]
        prompt_tokens = sampler.first_prompt(policy, source)["prompt_ids"][0].tolist()
        lines = ["The first training prompt, as the policy reads it:", _decode_tokens(policy, prompt_tokens)]
        if isinstance(module, SupervisedFineTuning):
            first_row = torch.zeros(1, dtype=torch.int64)
            rollouts = demonstration_rollouts(policy, source.groups(first_row), sampler.tools)
            # actions and mask: [groups, answers, tokens]
            trained_tokens = rollouts.actions[0, 0][rollouts.mask[0, 0]].tolist()
            lines += ["The first demonstration's trained tokens:", _decode_tokens(policy, trained_tokens)]
    except UserError as error:
        lines = ["The first training prompt can't be shown:", str(error)]
    lines.append(f"Answers end at {sampler.ends(policy)}.")
    return "\n".join(printable(line) for line in lines)


def _decode_tokens(policy: Any, tokens: list[int]) -> str:
    """The text of tokens, with an image's repeated token once, and without the middle of a long text."""
    image = getattr(policy, "image_token", None)
    kept: list[int] = []
    previous = None
    for token in tokens:
        if token != image or previous != image:
            kept.append(token)
        previous = token
    text = policy.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if len(text) <= LETTERS:
        return text
    return f"{text[: LETTERS // 2]} [...] {text[-LETTERS // 2 :]}"


def _print_inventory(inventory: dict[str, list[Pieces]]) -> None:
    """Print a table of all splits' pieces, then notes and the first faults."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from lightning_cgrpo.core.errors import printable
    from lightning_cgrpo.core.output import print_table

    table = Table(box=SIMPLE_HEAD, title="Data")
    table.title_justify = "left"
    for head in ("split", "pieces", "expected", "present", "missing or corrupt"):
        table.add_column(head, justify="left" if head in ("split", "pieces") else "right", no_wrap=True)
    for split, pieces in inventory.items():
        for piece in pieces:
            table.add_row(split, piece.kind, f"{piece.expected:,}", f"{piece.present:,}", f"{len(piece.faults):,}")
    print_table(table)

    # Notes and faults, which would make the table too wide.
    for split, pieces in inventory.items():
        for piece in pieces:
            if piece.note:
                print(f"- {split}, {piece.kind}: {printable(piece.note)}")
            for fault in piece.faults[:SHOWN]:
                print(f"- {split}: {printable(fault)}")
            unshown = len(piece.faults) - SHOWN
            if unshown > 0:
                print(f"- {split}: {unshown:,} more {piece.kind}, which --out FILE lists")
