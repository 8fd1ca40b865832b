"""The pages of a report: tables in Markdown, and everything in one page of HTML."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.tables import Table, grid, html_table, markdown, plain
from lightning_cgrpo.run.advice import advice

HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Report</title><style>
body {{ font: 15px/1.45 sans-serif; max-width: 1200px; margin: auto; padding: 1em; color: #222; background: #fff }}
figure {{ margin: 1.5em 0 }} figcaption {{ color: #555 }} figure div {{ overflow-x: auto }}
@media (min-width: 600px) {{ img {{ max-width: 100% }} }}
table {{ border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }}
td, th {{ padding: 3px 8px; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }}
td:first-child, th:first-child {{ text-align: left; overflow-wrap: anywhere; min-width: 7em }}
.pair {{ display: flex; flex-wrap: wrap; gap: 1em }} .pair div {{ flex: 1 1 320px; min-width: 0 }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 0.6em }}
</style></head><body>
{body}
</body></html>
"""
CAPTIONS = {
    "timeline": "Met and missed: each enforced constraint against its final threshold, over training. Paler colors: "
    "only a share of the seeds.",
    "front": "Reward against compliance, a point per run. Compliance is the share of the second half of training in "
    "which a threshold is met, for the constraint that is met least.",
    "curves": "Learning curves: mean over seeds, band ± 1 standard deviation; thresholds dashed.",
}


def report_page(methods: Sequence[MethodRuns], tables: Sequence[Table]) -> str:
    """The runs that were read, and all tables."""
    rows = []
    notes: list[str] = []
    for method in methods:
        seeds = []
        for run in method.runs:
            seeds.append("?" if run.seed is None else str(run.seed))
        rows.append([plain(method.label), ", ".join(seeds), method.progress])
        notes += [f"- {plain(note)}\n" for note in notes_of(method)]
    parts = [grid("# Report\n\n## What was read", ["method", "seeds", "updates"], rows)]
    if notes:
        parts.append("".join(notes))
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in tables]
    return "\n".join([*parts, "Figures: `report.html`, beside this page.\n"])


def html_page(methods: Sequence[MethodRuns], tables: Sequence[Table], pictures: Sequence[Path]) -> str:
    """Figures, answers before and after training, and tables: one file without links."""
    parts = ["<h1>Report</h1>"]
    for method in methods:
        parts += [f"<p>{escape(note)}</p>" for note in notes_of(method)]
    for picture in pictures:
        image = base64.b64encode(picture.read_bytes()).decode()
        caption = CAPTIONS[picture.stem.partition("_")[0]]
        # 150 dots per inch are drawn as 100: letters have 11 pixels, and a wide figure scrolls on a phone.
        parts.append(f'<figure><div><img alt="{picture.stem}" srcset="data:image/png;base64,{image} 1.5x">')
        parts.append(f"</div><figcaption>{escape(caption)}</figcaption></figure>")
    for method in methods:
        parts += _compare_answers(method)
    parts += [f"<h2>{escape(table.title)}</h2>\n{html_table(table)}" for table in tables]
    return HTML.format(body="\n".join(parts))


def _compare_answers(method: MethodRuns) -> Iterator[str]:
    """HTML of the first and the last sampled answers of a method's first seed, side by side."""
    samples = method.runs[0].samples  # Markdown by update
    if len(samples) < 2:
        return
    yield f"<h2>Answers of {escape(method.label)}</h2><div class=pair>"
    for update in (min(samples), max(samples)):
        # Markdown's bold headings at the starts of lines.
        text = re.sub(r"(?m)^\*\*(.+?)\*\*", r"<b>\1</b>", escape(samples[update]))
        yield f"<div><h3>Update {update:,}</h3><pre>{text}</pre></div>"
    yield "</div>"


def notes_of(method: MethodRuns) -> Iterator[str]:
    """Runs that did not finish, lost their reward or hold a constraint, and faults."""
    for run in method.runs:
        title = f"{method.label}, seed {run.seed}"
        record = run.record
        if not run.finished:
            error = f": {record.error}" if record.error else ""
            yield f"{title}: {record.status} at {run.updates:,} updates{error}."
        for line in advice(record):
            yield f"{title}: {line}"
        for name, count in record.faults.items():
            if name == "skipped_steps":
                yield f"{title}: {count:,} optimizer steps were skipped."
            else:
                yield f"{title}: {count:,} logged updates had faults of {name}."
