"""A plan as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_cgrpo.planning.plan import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {
        "policy": plan.policy,
        "parameters": plan.parameters,
        "trainable": plan.trainable,
        "gpus": plan.how.gpus,
        "strategy": plan.how.strategy,
        "sharding": plan.how.sharding,
        "prompt_tokens": plan.work.prompt_tokens,
        "answer_tokens": plan.work.answer_tokens,
        "bytes_per_gpu": {"peak": plan.memory.peak, **plan.memory.totals},
        "phases": plan.memory.phases,
        "tokens_per_update": vars(plan.tokens),
        "bytes_sent_per_gpu_and_update": {**vars(plan.traffic), "total": plan.traffic.total},
        "flops_per_update": {**plan.flops, "total": sum(plan.flops.values())},
        "notes": plan.notes,
    }


def show(plan: Plan, console: Console) -> None:
    """Print tables and notes."""
    how, work, tokens = plan.how, plan.work, plan.tokens
    trained = "" if plan.trainable == plan.parameters else f", {count(plan.trainable)} trained"
    spread = {"none": "", "ddp": ", DDP", "fsdp": ", FSDP2"}[how.sharding]
    console.print(f"{plan.policy}: {count(plan.parameters)} parameters{trained}")
    prompts = f"{work.all_prompts} prompts" + f" of {work.prompt_tokens} tokens" * bool(work.prompt_tokens)
    console.print(
        f"{how.gpus} GPU{'s' * (how.gpus > 1)}{spread}; an update has {prompts} and {work.group_size} answers to each, "
        f"of up to {work.answer_tokens} {'tokens' if work.prompt_tokens else 'steps'}.\n",
        highlight=False,
        soft_wrap=True,
    )
    counts = {
        "sampled": tokens.sampled,
        "of prompts, each once": tokens.prompts,
        "through training passes": tokens.trained,
        "if every answer had its own prompt": tokens.unshared if tokens.prompts else 0,
        "through the reference": tokens.reference,
    }
    sent = {name.replace("_", "-"): size for name, size in vars(plan.traffic).items()}
    tables = {
        "Memory of a GPU, GB": _memory(plan),
        f"{'Tokens' if work.prompt_tokens else 'Steps'} of an update, all GPUs": _pairs(
            {name: f"{value:,}" for name, value in counts.items() if value}
        ),
        "Sent by each GPU in an update, GB": _pairs(
            {name: giga(size) for name, size in {**sent, "together": plan.traffic.total}.items() if size}
        ),
        "Operations of an update, all GPUs": _operations(plan),
    }
    for title, table in tables.items():
        if table.row_count:
            console.print(title, style="bold", highlight=False)
            console.print(table)
    for note in plan.notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def _memory(plan: Plan) -> Table:
    phases, totals = plan.memory.phases, plan.memory.totals
    parts = list(dict.fromkeys(part for phase in phases.values() for part in phase))
    peak = max(totals, key=lambda name: totals[name])
    table = Table(show_edge=False, header_style="")
    table.add_column("")
    for name in phases:
        table.add_column(name, justify="right", style="bold" if name == peak else None)
    for part in parts:
        table.add_row(part, *(giga(phase[part]) if part in phase else "" for phase in phases.values()))
    table.add_section()
    table.add_row("together", *(giga(total) for total in totals.values()))
    return table


def _pairs(rows: Mapping[str, str]) -> Table:
    table = Table(show_header=False, show_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for row in rows.items():
        table.add_row(*row)
    return table


def _operations(plan: Plan) -> Table:
    table = Table(show_edge=False, header_style="")
    for name in ("", "TFLOP", "share"):
        table.add_column(name, justify="right" if name else "left")
    total = max(sum(plan.flops.values()), 1)
    for name, value in plan.flops.items():
        table.add_row(name, f"{value / 1e12:,.4g}", f"{value / total:.0%}")
    table.add_section()
    table.add_row("together", f"{total / 1e12:,.4g}", "")
    return table


def giga(size: int) -> str:
    """Text of a size in GB (10^9 bytes)."""
    return f"{size / 1e9:,.2f}" if size >= 5e6 else f"{size / 1e9:.2g}"


def count(number: int) -> str:
    """A number as a text in thousands, millions or billions.

    Example:
        >>> count(494_032_768)
        '494 M'
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
