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
    columns, rows = list(measured), []
    for name, declared in constraints.items():
        rows.append([declared.label, *(of.constraints.get(name, declared).text for of in columns)])
    return [*rows, ["reward", *(of.reward.text for of in columns)]]


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
    adapters = (directory / "adapter_config.json").exists()
    lines = ["---", f"library_name: {'peft' if adapters else 'transformers'}"]
    lines += _of_base(base)
    lines += ["tags: [grpo, constrained-grpo, lightning-cgrpo]", "---", f"# {plain(record.name)}", ""]
    lines += [
        f"Trained with lightning_cgrpo's `{method}`: the policy after update {update:,}. Reward: {plain(reward)}."
    ]
    shown = {key: of for key, of in record.measured.items() if key == "before" or of.update == update}
    if "best" in shown:
        shown.pop("last", None)
    heads = ["behavior and threshold", *(COLUMNS[key] for key in COLUMNS if key in shown)]
    rows = measured_rows(record.constraints, (shown[key] for key in COLUMNS if key in shown))
    prompts = {COLUMNS[key]: of.prompts for key, of in shown.items() if of.prompts}
    lines += ["", *_table(heads, rows), "", "Parentheses: 95 % intervals over prompts"]
    lines[-1] += f" ({', '.join(f'{head}: {count:,}' for head, count in prompts.items())})." if prompts else "."
    lines += ["", "## Certificate"]
    for certificate in certificates:
        lines += ["", *_certificate(certificate)]
    if not certificates:
        lines += ["", CERTIFY]
    (directory / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _of_base(base: str | None) -> list[str]:
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
    head = text.split("\n---")[0] if text.startswith("---") else ""
    return lines + [line for line in head.splitlines() if re.match(r"(license|license_name|license_link):\s*\S", line)]


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

    found = try_to_load_from_cache(name, CARD)
    return Path(found) if isinstance(found, str) else None


def _certificate(certificate: Certificate) -> list[str]:
    question = certificate["question"]
    rows = []
    for name, of in certificate["constraints"].items():
        word = next(word for word in BOUNDS if word in of)
        rate = "never observed" if of["rate"] is None else f"{of['rate']:.4f}"
        condition = f" given {of['given']}" if "given" in of else ""
        rows.append(
            [f"{name}, {word} {of[word]:g}{condition}", rate, f"{of['low']:.4f}-{of['high']:.4f}", of["decision"]]
        )
    over = f"all constraints and all looks along the lineage, of which this is look {certificate['look']}"
    lines = [
        f"{certificate['decision']}, on {certificate['at'][:10]}, with {certificate['prompts']:,} prompts that neither "
        f"trained nor selected the policy; confidence {question['confidence']:g} over {over}.",
        "",
        *_table(["behavior, certified threshold", "rate", "bounds", "verdict"], rows),
        "",
        f"Assumes that {'; that '.join(certificate['assumptions'])}.",
    ]
    lines.append(f"Not certified: {', '.join(map(plain, certificate['not_certified']))}.")
    if certificate["not_as_in_training"]:
        lines.append(f"Not as in training: {plain('; '.join(certificate['not_as_in_training']))}.")
    digests = {"prompts": certificate["prompts_fingerprint"], "manifest": certificate["manifest"]}
    digests |= {"policy": certificate["policy"], "record": certificate[DIGEST]}
    tested = certificate["question"]["data"].get("test prompts")
    if tested is not None:
        digests["test file"] = tested
    lines.append(f"Fingerprints: {', '.join(f'{name} `{digest}`' for name, digest in digests.items())}.")
    if EDITED in certificate:
        lines.append("**The record of this certificate was edited by hand, or a record before it was removed.**")
    return lines


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(plain(cell).replace("|", "\\|") for cell in row) + " |" for row in cells]


def plain(text: str) -> str:
    r"""Text whose tags and links Markdown shows as they are written.

    Example:
        >>> plain("<b>lava</b> <= 0.1, [x](y)")
        '&lt;b>lava&lt;/b> <= 0.1, [x]\\(y)'
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(text)).replace("](", "]\\(")
