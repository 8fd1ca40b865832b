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
        is_command = line.startswith(" ")
        console.print(line, markup=False, highlight=False, soft_wrap=is_command or not console.is_terminal)


def closing_table(record: RunRecord) -> Table:
    """A row per constraint, and the reward's, with the measurements that the run has."""
    measured = {key: record.measured[key] for key in COLUMNS if key in record.measured}
    if "best" in measured:
        measured.pop("last", None)
    title = f"Run {record.status}: {record.error}" if record.error else f"Run {record.status}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    rows = []
    for cells in measured_rows(record.constraints, measured.values()):
        rows.append([_break_line(cell) for cell in cells])
    # A short name stays beside its threshold; a longer one leaves room for intervals at 80 columns.
    longest = max(_longest_line(row[0]) for row in rows)
    table.add_column("", overflow="fold", no_wrap=longest <= 24)
    for key in measured:
        table.add_column(COLUMNS[key], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _break_line(cell: str) -> str:
    """The cell with notes on a line of their own."""
    return cell.replace(" (monitored)", "\n(monitored)").replace(") too few", ")\ntoo few")


def _longest_line(cell: str) -> int:
    return max(len(line) for line in cell.split("\n"))


def _why_best(best: Measurement, look: Look | None) -> list[str]:
    """Why validation's rule (`Selection`) chose this checkpoint, and which thresholds it leaves open."""
    if best.chance is not None and look is not None:
        if best.chance.whole >= look.chance:
            return ["It is the latest with the declared chance of a certificate, with nearly the highest reward."]
        return ["It is the most likely of the last third of the validations to be certified."]
    enforced = [constraint for constraint in best.constraints.values() if constraint.enforced]
    prompts = best.prompts or 0
    unranked = too_few_to_rank({constraint.name: constraint.bound for constraint in enforced}, prompts)
    if unranked:
        return [f"It is the last, because {prompts:,} validation prompts can't rank policies by {', '.join(unranked)}."]
    if not all(constraint.met for constraint in enforced):
        return ["It is the last, because no policy of the last third of the validations met all thresholds."]
    lines = ["It is the latest whose estimates met all thresholds, with nearly the highest reward."]
    undecided = [constraint.name for constraint in enforced if constraint.side != "met"]
    if undecided:
        lines.append(f"{prompts:,} validation prompts leave {', '.join(undecided)} undecided.")
    return lines


def _look_lines(record: RunRecord) -> list[str]:
    """The chance that a declared look certifies the best checkpoint, targets that are missed, and what would help."""
    look = record.look
    measured = record.measured.get("best") or record.measured.get("last")
    if look is None or measured is None or measured.chance is None:
        return []
    chance = measured.chance
    lines = [
        f"`certify` with {look.prompts:,} prompts certifies it with a chance of {chance.whole:.0%}, as far as "
        "validation tells."
    ]
    if chance.whole >= look.chance:
        return lines
    missed = _missed_targets(measured)
    if missed:
        lines.append(f"It is short of the targets for this look: {', '.join(missed)}.")
    # What would make the certificate likelier.
    enough_prompts = [prompts for prompts, more_chance in chance.more.items() if more_chance >= look.chance]
    if enough_prompts:
        fewest = enough_prompts[0]
        with_more_prompts = f"with --prompts {fewest} the chance is {chance.more[fewest]:.0%}"
    else:
        most = max(chance.more)
        with_more_prompts = f"more prompts alone don't help (with {most:,} the chance is {chance.more[most]:.0%})"
    least_likely = min(chance.each, key=lambda name: chance.each[name])
    bound = record.constraints[least_likely].bound
    lines.append(
        f"That is less than the {look.chance:.0%} that are declared, so don't spend the look yet: {with_more_prompts}. "
        f"{least_likely} {bound} is the least likely ({chance.each[least_likely]:.0%}): more updates, or a looser "
        f"{bound.key}, may raise it."
    )
    return lines


def _missed_targets(measured: Measurement) -> list[str]:
    """The constraints whose value misses the target for the declared look, with value and target."""
    missed = []
    for name, target in (measured.targets or {}).items():
        constraint = measured.constraints.get(name)
        if constraint is None or constraint.value is None:
            continue
        aim = replace(constraint.bound, threshold=target)
        if not aim.met(constraint.value):
            missed.append(f"{name} {constraint.value:.4g} ({aim.sign} {target:.3g})")
    return missed


def closing_lines(record: RunRecord, folder: Path, test_prompts: str = "", exports: bool = True) -> list[str]:
    """The best checkpoint, the run's size, and commands that can be copied."""
    asked = f" of {record.asked:,}" if record.asked else ""
    answers = f", {record.answers:,} answers" if record.answers else ""
    minutes = (record.seconds or 0) / 60
    lines = [f"{record.updates:,}{asked} updates{answers}, {minutes:.1f} min."]
    best = record.best
    if best:
        measured = record.measured["best"]
        path = os.path.normpath(folder / best.checkpoint)  # relative, as in the commands below
        lines.append(f"Best checkpoint: {path}, of update {measured.update:,}, by {best.monitor} {best.score:.4g}.")
        if best.monitor.endswith("merit"):
            lines.extend(_why_best(measured, record.look))
    lines.extend(_look_lines(record))
    lines.extend(advice(record))
    config = folder / "config.yaml"
    if record.status == "failed" or not config.is_file():  # A run from Python has no configuration.
        return lines
    command = "python -m lightning_cgrpo"
    last_checkpoint = folder / CHECKPOINTS / LAST
    lines.append("Next:")
    if record.status == "interrupted" and last_checkpoint.exists():
        lines.append(f"  {command} fit -c {config} --ckpt_path={last_checkpoint}")
    lines.append(f"  {command} test -c {config}{test_prompts}")
    lines.append(f"  {command} certify -c {config}{test_prompts}")
    if exports:
        lines.append(f"  {command} export -c {config} --out model")
    lines.append(f"  tensorboard --logdir {folder.parent}    (then http://localhost:6006/#custom_scalars)")
    return lines
