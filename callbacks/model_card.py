"""The model card of an exported policy: objective, rates, thresholds and certificate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.errors import printable
from lightning_cgrpo.core.paths import expand_path
from lightning_cgrpo.objective.constraint import BOUNDS
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.run.record import Measurement, RunRecord
from lightning_cgrpo.run.register import DIGEST, EDITED

CARD = "README.md"
COLUMNS = {"before": "before", "end": "end of training", "last": "last validation", "best": "best checkpoint"}
"""Titles of the measurements in a run's summary."""
CERTIFY = "No certificate: `lightning_cgrpo certify -c RUN/config.yaml` decides about the thresholds on new prompts."

Certificate = Mapping[str, Any]


def measured_rows(constraints: Mapping[str, MeasuredConstraint], measured: Iterable[Measurement]) -> list[list[str]]:
    """A row per constraint, and the reward's: name with threshold, and a cell per measurement."""
    columns = list(measured)
    rows = []
    for name, declared in constraints.items():
        cells = [measurement.constraints.get(name, declared).text for measurement in columns]
        rows.append([declared.label, *cells])
    rows.append(["reward", *(measurement.reward.text for measurement in columns)])
    return rows


def write_card(
    directory: Path,
    base: str | None,
    method: str,
    record: RunRecord,
    update: int,
    reward: str,
    certificates: Sequence[Certificate] = (),
) -> None:
    """Write ``README.md`` beside a model's files.

    Args:
        base: the model that training started from; a directory on this machine is left out, but its card's license
            holds for the policy too.
        method: class of the LightningModule.
        record: of the run.
        update: of the exported policy; other measurements than of this policy and of the start are left out.
        reward: names of the maximized signals.
        certificates: of the exported policy.
    """
    # The head, which the hub reads.
    library = "peft" if (directory / "adapter_config.json").exists() else "transformers"
    lines = ["---", f"library_name: {library}"]
    lines += _base_model_lines(base)
    lines += ["tags: [grpo, constrained-grpo, lightning-cgrpo]", "---"]

    lines += [f"# {escape_markdown(record.name)}", ""]
    lines.append(
        f"Trained with lightning_cgrpo's `{method}`: the policy after update {update:,}. "
        f"Reward: {escape_markdown(reward)}."
    )
    lines += ["", *_measurement_lines(record, update)]
    lines += ["", "## Certificate"]
    for certificate in certificates:
        lines += ["", *_certificate_lines(certificate)]
    if not certificates:
        lines += ["", CERTIFY]
    (directory / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _measurement_lines(record: RunRecord, update: int) -> list[str]:
    """A table of the measurements of the start and of the policy after an update, with numbers of prompts."""
    shown = {}
    for key, measurement in record.measured.items():
        if key == "before" or measurement.update == update:
            shown[key] = measurement
    if "best" in shown:
        shown.pop("last", None)
    keys = [key for key in COLUMNS if key in shown]
    heads = ["behavior and threshold", *(COLUMNS[key] for key in keys)]
    rows = measured_rows(record.constraints, [shown[key] for key in keys])
    counts = []
    for key, measurement in shown.items():
        if measurement.prompts:
            counts.append(f"{COLUMNS[key]}: {measurement.prompts:,}")
    caption = "Parentheses: 95 % intervals over prompts"
    if counts:
        caption += f" ({', '.join(counts)})"
    return [*_markdown_table(heads, rows), "", f"{caption}."]


def _base_model_lines(base: str | None) -> list[str]:
    """Lines about the model that training started from: its name on the hub, and the license in its own card."""
    if base is None or ":" in base:
        return []
    folder = expand_path(base)
    if not folder.exists() and not _names_a_repository(base):
        return []  # a model from scratch
    lines = [] if folder.exists() else [f"base_model: {base}"]
    card = folder / CARD if folder.is_dir() else _cached_card(base)
    if card is None or not card.is_file():
        return lines
    text = card.read_text(encoding="utf-8", errors="replace")
    if text.startswith("---"):
        head = text.split("\n---")[0]
        license_key = re.compile(r"(license|license_name|license_link):\s*\S")
        lines += [line for line in head.splitlines() if license_key.match(line)]
    return lines


def _names_a_repository(name: str) -> bool:
    """Whether the hub could have a model of this name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _cached_card(name: str) -> Path | None:
    """The card of a model on the hub, if it was downloaded."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, CARD)
    return Path(cached) if isinstance(cached, str) else None


def _certificate_lines(certificate: Certificate) -> list[str]:
    """The decision, a table of the constraints, assumptions, and fingerprints."""
    rows = [_certified_row(name, constraint) for name, constraint in certificate["constraints"].items()]
    confidence = certificate["question"]["confidence"]
    lines = [
        f"{certificate['decision']}, on {certificate['at'][:10]}, with {certificate['prompts']:,} prompts that neither "
        f"trained nor selected the policy; confidence {confidence:g} over all constraints and all looks along the "
        f"lineage, of which this is look {certificate['look']}.",
        "",
        *_markdown_table(["behavior, certified threshold", "rate", "bounds", "verdict"], rows),
        "",
        f"Assumes that {'; that '.join(certificate['assumptions'])}.",
    ]
    lines.append(f"Not certified: {', '.join(map(escape_markdown, certificate['not_certified']))}.")
    if certificate["not_as_in_training"]:
        differences = "; ".join(certificate["not_as_in_training"])
        lines.append(f"Not as in training: {escape_markdown(differences)}.")

    digests = {
        "prompts": certificate["prompts_fingerprint"],
        "manifest": certificate["manifest"],
        "policy": certificate["policy"],
        "record": certificate[DIGEST],
    }
    test_file = certificate["question"]["data"].get("test prompts")
    if test_file is not None:
        digests["test file"] = test_file
    fingerprints = [f"{name} `{digest}`" for name, digest in digests.items()]
    lines.append(f"Fingerprints: {', '.join(fingerprints)}.")
    if EDITED in certificate:
        lines.append("**The record of this certificate was edited by hand, or a record before it was removed.**")
    return lines


def _certified_row(name: str, constraint: Mapping[str, Any]) -> list[str]:
    bound = next(bound for bound in BOUNDS if bound in constraint)
    behavior = f"{name}, {bound} {constraint[bound]:g}"
    if "given" in constraint:
        behavior += f" given {constraint['given']}"
    rate = "never observed" if constraint["rate"] is None else f"{constraint['rate']:.4f}"
    bounds = f"{constraint['low']:.4f}-{constraint['high']:.4f}"
    return [behavior, rate, bounds, constraint["decision"]]


def _markdown_table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = []
    for row in [heads, ["---"] * len(heads), *rows]:
        cells = [escape_markdown(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def escape_markdown(text: str) -> str:
    r"""Text whose tags and links Markdown shows as they are written.

    Example:
        >>> escape_markdown("<b>lava</b> <= 0.1, [x](y)")
        '&lt;b>lava&lt;/b> <= 0.1, [x]\\(y)'
    """
    without_tags = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(text))
    return without_tags.replace("](", "]\\(")
