"""The closing card of a run: whether the run worked, and the next commands."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.callbacks.model_card import COLUMNS, measured_rows
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.objective.look import Look
from lightning_cgrpo.objective.selection import too_few_to_rank
from lightning_cgrpo.run.advice import advice
from lightning_cgrpo.run.checkpoints.files import CHECKPOINTS, LAST
from lightning_cgrpo.run.record import Measurement, RunRecord


def show_closing_card(record: RunRecord, folder: Path, test_prompts: str = "", exports: bool = True) -> None:
    """Print the card of the run in `folder`.

    Args:
        test_prompts: the setting that names test prompts, if the configuration has none.
        exports: whether `export` knows the policy's kind.
    """
    print_table(closing_table(record))
    console = get_console()
    for line in closing_lines(record, folder, test_prompts, exports):
        # A terminal copies a command as one line, unless the command was broken at words.
        whole = line.startswith(" ") or not console.is_terminal
        console.print(line, markup=False, highlight=False, soft_wrap=whole)


def closing_table(record: RunRecord) -> Table:
    """A row per constraint, and the reward's, with the measurements that the run has."""
    measured = {key: record.measured[key] for key in COLUMNS if key in record.measured}
    if "best" in measured:
        measured.pop("last", None)
    title = f"Run {record.status}" + (f": {record.error}" if record.error else "")
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    rows = measured_rows(record.constraints, measured.values())
    broken = [(" (monitored)", "\n(monitored)"), (") too few", ")\ntoo few")]
    for row in rows:
        for number, cell in enumerate(row):
            for together, apart in broken:
                cell = cell.replace(together, apart)
            row[number] = cell
    # A short name stays beside its threshold; a longer one leaves room for intervals at 80 columns.
    longest = max(len(line) for row in rows for line in row[0].split("\n"))
    table.add_column("", overflow="fold", no_wrap=longest <= 24)
    for key in measured:
        table.add_column(COLUMNS[key], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _why_best(best: Measurement, look: Look | None) -> list[str]:
    """Why validation's rule (`Selection`) chose this checkpoint, and which thresholds it leaves open."""
    if (chance := best.chance) is not None and look is not None:
        if chance.whole >= look.chance:
            return ["It is the latest with the declared chance of a certificate, with nearly the highest reward."]
        return ["It is the most likely of the last third of the validations to be certified."]
    enforced = [of for of in best.constraints.values() if of.enforced]
    prompts = best.prompts or 0
    if unranked := too_few_to_rank({of.name: of.bound for of in enforced}, prompts):
        return [f"It is the last, because {prompts:,} validation prompts can't rank policies by {', '.join(unranked)}."]
    if not all(of.met for of in enforced):
        return ["It is the last, because no policy of the last third of the validations met all thresholds."]
    lines = ["It is the latest whose estimates met all thresholds, with nearly the highest reward."]
    undecided = [of.name for of in enforced if of.side != "met"]
    if undecided:
        lines.append(f"{prompts:,} validation prompts leave {', '.join(undecided)} undecided.")
    return lines


def _look_lines(record: RunRecord) -> list[str]:
    """The chance that a declared look certifies the best checkpoint, targets that are missed, and what would help."""
    look, measured = record.look, record.measured.get("best") or record.measured.get("last")
    if look is None or measured is None or (chance := measured.chance) is None:
        return []
    told = f"with a chance of {chance.whole:.0%}, as far as validation tells."
    lines = [f"`certify` with {look.prompts:,} prompts certifies it {told}"]
    if chance.whole >= look.chance:
        return lines
    # Which targets are missed.
    short = []
    for name, target in (measured.targets or {}).items():
        found = measured.constraints.get(name)
        if found is None or found.value is None:
            continue
        aim = replace(found.bound, threshold=target)
        if not aim.met(found.value):
            short.append(f"{name} {found.value:.4g} ({aim.sign} {target:.3g})")
    if short:
        lines.append(f"It is short of the targets for this look: {', '.join(short)}.")
    # What would make the certificate likelier.
    likely = [number for number, of in chance.more.items() if of >= look.chance]
    if likely:
        prompts = f"with --prompts {likely[0]} the chance is {chance.more[likely[0]]:.0%}"
    else:
        most = max(chance.more)
        prompts = f"more prompts alone don't help (with {most:,} the chance is {chance.more[most]:.0%})"
    least = min(chance.each, key=lambda name: chance.each[name])
    bound = record.constraints[least].bound
    lines.append(
        f"That is less than the {look.chance:.0%} that are declared, so don't spend the look yet: {prompts}. "
        f"{least} {bound} is the least likely ({chance.each[least]:.0%}): more updates, or a looser {bound.key}, may "
        "raise it."
    )
    return lines


def closing_lines(record: RunRecord, folder: Path, test_prompts: str = "", exports: bool = True) -> list[str]:
    """The best checkpoint, the run's size, and commands that can be copied."""
    asked = f" of {record.asked:,}" if record.asked else ""
    answers = f", {record.answers:,} answers" if record.answers else ""
    lines = [f"{record.updates:,}{asked} updates{answers}, {(record.seconds or 0) / 60:.1f} min."]
    if best := record.best:
        measured = record.measured["best"]
        path = os.path.normpath(folder / best.checkpoint)  # relative, as in the commands below
        lines.append(f"Best checkpoint: {path}, of update {measured.update:,}, by {best.monitor} {best.score:.4g}.")
        if best.monitor.endswith("merit"):
            lines.extend(_why_best(measured, record.look))
    lines.extend(_look_lines(record))
    lines.extend(advice(record))
    command, config = "python -m lightning_cgrpo", folder / "config.yaml"
    if record.status == "failed" or not config.is_file():  # A run from Python has no configuration.
        return lines
    resume = folder / CHECKPOINTS / LAST
    return [
        *lines,
        "Next:",
        *([f"  {command} fit -c {config} --ckpt_path={resume}"] if _can_resume(record, resume) else []),
        f"  {command} test -c {config}{test_prompts}",
        f"  {command} certify -c {config}{test_prompts}",
        *([f"  {command} export -c {config} --out model"] if exports else []),
        f"  tensorboard --logdir {folder.parent}    (then http://localhost:6006/#custom_scalars)",
    ]


def _can_resume(record: RunRecord, checkpoint: Path) -> bool:
    return record.status == "interrupted" and checkpoint.exists()
