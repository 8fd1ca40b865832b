"""The closing card of a run: whether the run worked, and the next commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.callbacks.model_card import COLUMNS, measured_rows
from lightning_cgrpo.checkpoints.files import CHECKPOINTS, LAST
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.reward_kept import advice
from lightning_cgrpo.objective.selection import too_few_to_rank

Record = dict[str, Any]


def show_closing_card(record: Record, folder: Path, test_prompts: str = "", exports: bool = True) -> None:
    """Print the card of the run in `folder`.

    Args:
        record: the run's summary (`RunSummary`).
        test_prompts: the setting that names test prompts, if the configuration has none.
        exports: whether `export` knows the policy's kind.
    """
    print_table(closing_table(record))
    console = get_console()
    for line in closing_lines(record, folder, test_prompts, exports):
        # A terminal copies a command as one line, unless the command was broken at words.
        whole = line.startswith(" ") or not console.is_terminal
        console.print(line, markup=False, highlight=False, soft_wrap=whole)


def closing_table(record: Record) -> Table:
    """A row per constraint, and the reward's, with the measurements that the run has."""
    measured = {key: record["measured"][key] for key in COLUMNS if key in record["measured"]}
    if "best" in measured:
        measured.pop("last", None)
    title = f"Run {record['status']}" + (f": {record['error']}" if record["error"] else "")
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    rows = measured_rows(record["constraints"], measured.values())
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


def _why_best(record: Record) -> list[str]:
    """Why validation's rule (`Selection`) chose this checkpoint, and which thresholds it leaves open."""
    best = record["measured"]["best"]
    sides: dict[str, str] = {}
    bounds: dict[str, Bound] = {}
    met = True
    for name, declared in record["constraints"].items():
        measured = best["constraints"].get(name)
        if declared["role"] == "constrain" and measured is not None:
            bound = Bound(declared["kind"], declared["direction"], declared["threshold"])
            sides[name] = bound.side(measured["low"], measured["high"])
            bounds[name] = bound
            met = met and bound.met(measured["value"])
    if (chance := best.get("chance")) is not None:
        if chance["whole"] >= record["look"]["chance"]:
            return ["It is the latest with the declared chance of a certificate, with nearly the highest reward."]
        return ["It is the most likely of the last third of the validations to be certified."]
    if unranked := too_few_to_rank(bounds, best["prompts"]):
        prompts = f"{best['prompts']:,} validation prompts"
        return [f"It is the last, because {prompts} can't rank policies by {', '.join(unranked)}."]
    if not met:
        return ["It is the last, because no policy of the last third of the validations met all thresholds."]
    lines = ["It is the latest whose estimates met all thresholds, with nearly the highest reward."]
    undecided = [name for name, side in sides.items() if side != "met"]
    if undecided:
        lines.append(f"{best['prompts']:,} validation prompts leave {', '.join(undecided)} undecided.")
    return lines


def _look_lines(record: Record) -> list[str]:
    """The chance that a declared look certifies the best checkpoint, targets that are missed, and what would help."""
    measured = record["measured"].get("best") or record["measured"].get("last") or {}
    look, chance = record.get("look"), measured.get("chance")
    if look is None or chance is None:
        return []
    whole, prompts = chance["whole"], f"{look['prompts']:,} prompts"
    lines = [f"`certify` with {prompts} certifies it with a chance of {whole:.0%}, as far as validation tells."]
    short = []
    for name, target in measured["targets"].items():
        declared, found = record["constraints"][name], measured["constraints"].get(name)
        bound = Bound(declared["kind"], declared["direction"], target)
        if found is not None and not bound.met(found["value"]):
            short.append(f"{name} {found['value']:.4g} ({bound.sign} {target:.3g})")
    if short:
        lines.append(f"It is short of the targets for this look: {', '.join(short)}.")
    if whole >= look["chance"]:
        return lines
    likely = [number for number, of in chance["more"].items() if of >= look["chance"]]
    number = int(likely[0] if likely else list(chance["more"])[-1])
    more = f"with --prompts {number} the chance is {chance['more'][str(number)]:.0%}"
    least = min(chance["each"], key=lambda name: chance["each"][name])
    declared = record["constraints"][least]
    bound = Bound(declared["kind"], declared["direction"], declared["threshold"])
    lines.append(
        f"That is less than the {look['chance']:.0%} that are declared, so don't spend the look yet: {more}. "
        f"{least} {bound} is the least likely ({chance['each'][least]:.0%}): more updates, or a looser {bound.key}, "
        "may raise it."
    )
    return lines


def closing_lines(record: Record, folder: Path, test_prompts: str = "", exports: bool = True) -> list[str]:
    """The best checkpoint, the run's size, and commands that can be copied."""
    asked = f" of {record['asked']:,}" if record["asked"] else ""
    answers = f", {record['answers']:,} answers" if record["answers"] else ""
    lines = [f"{record['updates']:,}{asked} updates{answers}, {record['seconds'] / 60:.1f} min."]
    if best := record["best"]:
        at = record["measured"]["best"]["update"]
        path = os.path.normpath(folder / best["checkpoint"])  # relative, as in the commands below
        lines.append(f"Best checkpoint: {path}, of update {at:,}, by {best['monitor']} {best['score']:.4g}.")
        if str(best["monitor"]).endswith("merit"):
            lines.extend(_why_best(record))
    lines.extend(_look_lines(record))
    lines.extend(advice(record))
    command, config = "python -m lightning_cgrpo", folder / "config.yaml"
    if record["status"] == "failed" or not config.is_file():  # A run from Python has no configuration.
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


def _can_resume(record: Record, checkpoint: Path) -> bool:
    return bool(record["status"] == "interrupted" and checkpoint.exists())
