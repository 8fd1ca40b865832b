"""A plan as tables, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from lightning_cgrpo.planning.plan import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    """All numbers: bytes, tokens, operations."""
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
        "flops_per_update": {**plan.flops.parts, "total": plan.flops.total},
        "notes": plan.notes,
    }


def show(plan: Plan, console: Console) -> None:
    """The same for people."""
    how, work = plan.how, plan.work
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
    unit = "Tokens" if work.prompt_tokens else "Steps"
    tables = {
        "Memory of a GPU, GB": _memory(plan),
        f"{unit} of an update, all GPUs": _tokens(plan),
        "Sent by each GPU in an update, GB": _traffic(plan) if plan.traffic.total else None,
        "Operations of an update, all GPUs": _operations(plan),
    }
    for title, table in tables.items():
        if table is not None:
            console.print(title, style="bold", highlight=False)
            console.print(table)
    for note in plan.notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)


def _memory(plan: Plan) -> Table:
    phases = plan.memory.phases
    parts = list(dict.fromkeys(part for phase in phases.values() for part in phase))
    peak = max(plan.memory.totals, key=lambda name: plan.memory.totals[name])
    table = Table(show_edge=False, header_style="")
    table.add_column("")
    for name in phases:
        table.add_column(name, justify="right", style="bold" if name == peak else None)
    for part in parts:
        table.add_row(part, *(giga(phase[part]) if part in phase else "" for phase in phases.values()))
    table.add_section()
    table.add_row("together", *(giga(total) for total in plan.memory.totals.values()))
    return table


def _tokens(plan: Plan) -> Table:
    found = plan.tokens
    table = Table(show_header=False, show_edge=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "sampled": found.sampled,
        "of prompts, each once": found.prompts,
        "through training passes": found.trained,
        "if every answer had its own prompt": found.unshared if found.prompts else 0,
        "through the reference": found.reference,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, f"{value:,}")
    return table


def _traffic(plan: Plan) -> Table:
    table = Table(show_header=False, show_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, size in {**vars(plan.traffic), "together": plan.traffic.total}.items():
        if size:
            table.add_row(name.replace("_", "-"), giga(size))
    return table


def _operations(plan: Plan) -> Table:
    table = Table(show_edge=False, header_style="")
    for name in ("", "TFLOP", "share"):
        table.add_column(name, justify="right" if name else "left")
    total = max(plan.flops.total, 1)
    for name, value in plan.flops.parts.items():
        table.add_row(name, f"{value / 1e12:,.4g}", f"{value / total:.0%}")
    table.add_section()
    table.add_row("together", f"{total / 1e12:,.4g}", "")
    return table


def giga(size: int) -> str:
    """GB, 10^9 bytes."""
    return f"{size / 1e9:,.2f}" if size >= 5e6 else f"{size / 1e9:.2g}"


def count(number: int) -> str:
    """Parameters in thousands, millions or billions.

    Example:
        >>> count(494_032_768)
        '494 M'
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
