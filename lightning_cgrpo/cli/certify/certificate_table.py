"""The table of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.objective.constraint import BOUNDS

MEANS = {bound for bound in BOUNDS if bound.startswith("mean")}
STYLES = {"certified": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


def print_certificate(certificate: dict[str, Any], note: str) -> None:
    """Print the table of a certificate, and a note below."""
    decision = certificate["decision"]
    confidence = certificate["question"]["confidence"]
    caption = f"{certificate['source']}, one answer to each; confidence {confidence} over all constraints (Holm)"
    spent = f"look {certificate['look']} may be wrong with probability {certificate['error']:.4g}"
    caption += f" and all looks along the lineage: {spent}"
    title = Text.assemble(
        f"{Path(certificate['checkpoint']).name}, update {certificate['update']}: ",
        (decision.upper(), STYLES[decision]),
    )
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)

    any_mean = any(MEANS & verdict.keys() for verdict in certificate["constraints"].values())
    measured = "measured" if any_mean else "measured rate"
    # Names are not wrapped, because subsets whose names are cut off would look alike.
    table.add_column("", justify="left", no_wrap=True)
    table.add_column("threshold", justify="right")
    table.add_column(measured, justify="right")
    table.add_column("true value", justify="right", no_wrap=True)
    table.add_column("verdict", justify="left")
    table.add_column("prompts that would decide", justify="right")
    for name, verdict in certificate["constraints"].items():
        table.add_row(*_row_cells(name, verdict))
    print_table(table)
    if decision == "undecided":
        print("Prompts that would decide do so with 80 % probability, if the rate is the observed rate.")
    print(note, flush=True)


def _row_cells(name: str, verdict: Mapping[str, Any]) -> list[Text | str]:
    """The cells of a constraint's row."""
    bound_key = next(bound for bound in BOUNDS if bound in verdict)
    at_least = bound_key.endswith("at_least")
    threshold = verdict[bound_key]
    rate = verdict["rate"]
    decision = verdict["decision"]

    relation = ">=" if at_least else "<="
    bound = f"{relation} {threshold:g}"
    if "given" in verdict:
        bound += f" given {verdict['given']}"

    # The true value is bounded on both sides. The bound toward the threshold decided, or failed to.
    meets = decision == "certified"
    if decision == "undecided" and rate is not None:
        meets = rate >= threshold if at_least else rate <= threshold
    true_value = f"at least {verdict['low']:.4f}" if meets == at_least else f"at most {verdict['high']:.4f}"

    prompts = ""
    if decision == "undecided":
        needed = verdict["prompts_that_would_decide"]
        prompts = "no number" if needed is None else f"{needed:,}"
    return [
        Text(name),
        bound,
        "never observed" if rate is None else f"{rate:.4f}",
        true_value,
        Text(decision, style=STYLES[decision]),
        prompts,
    ]
