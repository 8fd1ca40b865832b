"""The table of a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.objective.constraint import BOUNDS

MEANS = {bound for bound in BOUNDS if bound.startswith("mean")}
STYLES = {"certified": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


def show(certificate: dict[str, Any], note: str) -> None:
    """Print the table of a certificate."""
    decision, confidence = certificate["decision"], certificate["question"]["confidence"]
    independence = certificate.get("independence")  # since November 28, 2026
    caption = f"{certificate['source']}, one answer to each{f' ({independence})' if independence else ''}; "
    caption += f"confidence {confidence} over all constraints (Holm)"
    if "error" in certificate:
        spent = f"look {certificate['look']} may be wrong with probability {certificate['error']:.4g}"
        caption += f" and all looks at the run: {spent}"
    title = Text.assemble(
        f"{certificate['checkpoint']}, update {certificate['update']}: ", (decision.upper(), STYLES[decision])
    )
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    means = any(MEANS & found.keys() for found in certificate["constraints"].values())
    measured = "measured" if means else "measured rate"
    for column in ("", "threshold", measured, "true value", "verdict", "prompts that would decide"):
        # Names that are cut off would not tell subsets apart.
        table.add_column(
            column, justify="left" if column in ("", "verdict") else "right", no_wrap=column in ("", "true value")
        )
    for name, found in certificate["constraints"].items():
        table.add_row(*_cells(name, found))
    print_table(table)
    if decision == "undecided":
        print("Prompts that would decide do so with 80 % probability, if the rate is the observed rate.")
    print(note, flush=True)


def _cells(name: str, found: Mapping[str, Any]) -> list[Text | str]:
    """The cells of a constraint's row."""
    bound_key = next(bound for bound in BOUNDS if bound in found)
    at_least = bound_key.endswith("at_least")
    threshold = found[bound_key]
    rate = found["rate"]
    decision = found["decision"]

    # The true value is bounded on both sides. The bound toward the threshold decided, or failed to.
    meets = decision == "certified"
    if decision == "undecided" and rate is not None:
        meets = rate >= threshold if at_least else rate <= threshold
    true_value = f"at least {found['low']:.4f}" if meets == at_least else f"at most {found['high']:.4f}"

    prompts = ""
    if decision == "undecided":
        needed = found["prompts_that_would_decide"]
        prompts = "no number" if needed is None else f"{needed:,}"
    return [
        Text(name),
        f"{'>=' if at_least else '<='} {threshold:g}" + (f" given {found['given']}" if "given" in found else ""),
        "never observed" if rate is None else f"{rate:.4f}",
        true_value,
        Text(decision, style=STYLES[decision]),
        prompts,
    ]
