"""Tables of rates and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning.pytorch import Callback, Trainer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.measurement import Evaluation
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.standing import standing
from lightning_cgrpo.output import print_table

ROWS = {"val": "validation", "test_train": "train", "test": "test", "test_follow_ups": "follow-ups"}

Lines = list[str | Text]


def objective_table(objective: Objective, evaluations: Mapping[str, Evaluation], title: str, width: int) -> Table:
    """Reward and length with standard errors, rates with intervals, and thresholds.

    A threshold is ``met`` or ``missed`` if the whole interval is on that side, else ``undecided``. Behaviors are
    columns; a table wider than `width` characters is transposed.

    Args:
        evaluations: by name of the set of prompts.
    """
    found = evaluations.values()
    sets: list[Lines] = [["threshold"]]
    sets += [[name, _size(of)] for name, of in evaluations.items()]
    behaviors: list[Lines] = [["reward", ", ".join(objective.rewards)]]
    cells: list[list[Lines]] = [[[], *(_measured(of, "reward/mean") for of in found)]]
    for name, constraint in _worst_first(objective, evaluations):
        behaviors.append([name])
        unknown = ["measured in", "training"] if name in objective.own else ["never", "observed"]
        cells.append([_threshold(constraint), *(_rate(of, name, constraint, unknown) for of in found)])
    behaviors.append(["answer", "length"])
    cells.append([[], *(_measured(of, "rollout/length") for of in found)])
    table = _table(title, behaviors, sets, list(zip(*cells, strict=True)), "\n")
    if Console(width=1000).measure(table).maximum <= width:
        return table
    return _table(title, sets, behaviors, cells, " ")


def _worst_first(objective: Objective, evaluations: Mapping[str, Evaluation]) -> list[tuple[str, Constraint]]:
    """The constraints, with the subsets of one behavior by their violation in the last evaluation."""
    rates = list(evaluations.values())[-1].rates if evaluations else {}

    def place(item: tuple[int, tuple[str, Constraint]]) -> tuple[int, float]:
        number, (name, constraint) = item
        if constraint.where is None:
            return number, 0.0
        behavior = f"{name.rpartition('/')[0]}/"
        first = min((n for n, other in enumerate(objective.constraints) if other.startswith(behavior)), default=number)
        excess = rates[name].rate - constraint.bound.target if name in rates else 0.0
        return first, -excess

    return [item for _, item in sorted(enumerate(objective.constraints.items()), key=place)]


def _size(of: Evaluation) -> str:
    return f"{of.prompts:,} x {of.answers // max(of.prompts, 1):,}"


def _threshold(constraint: Constraint) -> Lines:
    return [
        *(["mean"] if constraint.bound.of_mean else []),
        *filter(None, [str(constraint.bound)]),
        *(["monitored"] if constraint.role == "monitor" else []),
    ]


def _measured(of: Evaluation, tag: str) -> Lines:
    if not of.metrics:  # only rates were asked for
        return []
    value, error = of.metrics.get(tag), of.standard_errors.get(tag)
    if value is None:
        return ["never", "observed"]
    return [f"{value:.4g}", *([] if error is None else [f"± {error:.2g}"])]


def _rate(of: Evaluation, name: str, constraint: Constraint, unknown: list[str]) -> Lines:
    if name not in of.rates:
        return [*unknown] if of.metrics else []
    found = standing(constraint.bound, of.rates[name])
    alarming = found.says == "missed" and constraint.role == "constrain"
    says = [Text(found.says, style="bold red" if alarming else "")] if found.says else []
    value = constraint.bound.shown(of.rates[name].rate)
    return [f"{value:.4g}" if constraint.bound.of_mean else f"{value:.4f}", str(found), *says]


def _table(
    title: str, columns: Sequence[Lines], rows: Sequence[Lines], cells: Sequence[Sequence[Lines]], separator: str
) -> Table:
    def joined(lines: Lines) -> Text:
        return Text(separator).join(line if isinstance(line, Text) else Text(line) for line in lines)

    caption = "prompts x answers to each; ± standard error and 95 % intervals over prompts"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    table.add_column()
    for column in columns:
        table.add_column(joined(column), justify="right")
    for row, line in zip(rows, cells, strict=True):
        table.add_row(joined(row), *map(joined, line))
    return table


def show_table(objective: Objective, evaluations: Mapping[str, Evaluation], title: str) -> None:
    """Print the table in the terminal's width."""
    print_table(objective_table(objective, evaluations, title, Console().width))


class EvaluationTable(Callback):
    """Prints rates and thresholds after `validate` and `test`."""

    changes_learning = False

    def setup(self, trainer: Trainer, pl_module: RolloutModule, stage: str) -> None:
        # Lightning's own table repeats the metrics by tag.
        trainer.test_loop.verbose = trainer.validate_loop.verbose = False

    def on_test_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        self._show(trainer, pl_module, "Test", ("test_train", "test", "test_follow_ups"))

    def on_validation_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if trainer.state.fn == "validate":
            self._show(trainer, pl_module, "Validation", ("val",))

    def _show(self, trainer: Trainer, pl_module: RolloutModule, title: str, splits: Sequence[str]) -> None:
        if trainer.is_global_zero:
            evaluations = pl_module.evaluations
            rows = {ROWS[split]: evaluations[split] for split in splits if split in evaluations}
            show_table(pl_module.objective, rows, title)
