"""Tables of rates and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from lightning.pytorch import Callback, Trainer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.errors import expect
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.measurement import Evaluation, RunningSums
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.output import print_table
from lightning_cgrpo.randomness import Stream

ROWS = {"val": "validation", "test_train": "train", "test": "test", "test_follow_ups": "follow-ups"}

Lines = list[str | Text]


def objective_table(objective: Objective, evaluations: Mapping[str, Evaluation], title: str, width: int) -> Table:
    """Reward, rates and length with standard errors, and thresholds.

    Behaviors are columns; a table wider than `width` characters is transposed.

    Args:
        evaluations: by name of the set of prompts.
    """
    found = evaluations.values()
    sets: list[Lines] = [["threshold"]]
    sets += [[name, _size(of)] for name, of in evaluations.items()]
    behaviors: list[Lines] = [["reward", ", ".join(objective.rewards)]]
    cells: list[list[Lines]] = [[[], *(_measured(of, "reward/mean") for of in found)]]
    for name, constraint in objective.constraints.items():
        behaviors.append([name])
        cells.append([_threshold(constraint), *(_measured(of, f"rate/{name}", constraint) for of in found)])
    behaviors.append(["answer", "length"])
    cells.append([[], *(_measured(of, "rollout/length") for of in found)])
    table = _table(title, behaviors, sets, list(zip(*cells, strict=True)), "\n")
    if Console(width=1000).measure(table).maximum <= width:
        return table
    return _table(title, sets, behaviors, cells, " ")


def _size(of: Evaluation) -> str:
    return f"{of.prompts:,} x {of.answers // max(of.prompts, 1):,}"


def _threshold(constraint: Constraint) -> Lines:
    sign = "<=" if constraint.at_least is None else ">="
    bound = [] if constraint.bound is None else [f"{sign} {constraint.bound:g}"]
    return [*bound, *(["monitored"] if constraint.role == "monitor" else [])]


def _measured(of: Evaluation, tag: str, constraint: Constraint | None = None) -> Lines:
    value, error = of.metrics.get(tag), of.standard_errors.get(tag)
    if value is None:
        return ["never", "observed"]
    digits, of_error = (".4g", ".2g") if constraint is None else (".4f", ".4f")
    lines: Lines = [f"{value:{digits}}", *([] if error is None else [f"± {error:{of_error}}"])]
    if constraint is not None and constraint.bound is not None:
        met = constraint.met_by(value)
        enforced = constraint.role == "constrain"
        lines.append("met" if met else Text("missed", style="bold red" if enforced else ""))
    return lines


def _table(
    title: str, columns: Sequence[Lines], rows: Sequence[Lines], cells: Sequence[Sequence[Lines]], separator: str
) -> Table:
    def joined(lines: Lines) -> Text:
        return Text(separator).join(line if isinstance(line, Text) else Text(line) for line in lines)

    caption = "prompts x answers to each; ± standard error over prompts"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    table.add_column()
    for column in columns:
        table.add_column(joined(column), justify="right")
    for row, line in zip(rows, cells, strict=True):
        table.add_row(joined(row), *map(joined, line))
    return table


def _show(objective: Objective, evaluations: Mapping[str, Evaluation], title: str) -> None:
    print_table(objective_table(objective, evaluations, title, Console().width))


class InitialRates(Callback):
    """Prints reward and rates before the first update, to choose thresholds.

    Metrics are logged under ``initial/*``. A separate random stream leaves the run unchanged.

    Args:
        batches: number of training batches.
    """

    changes_learning = False

    def __init__(self, batches: int = 1) -> None:
        expect(batches >= 1, "batches", "at least 1", batches)
        self.batches = batches

    def on_train_start(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if trainer.global_step > 0 or trainer.train_dataloader is None:
            return
        sums = RunningSums()
        # Lightning sets the precision for its own steps alone.
        with trainer.precision_plugin.forward_context():
            for number, prompts in enumerate(islice(trainer.train_dataloader, self.batches)):
                prompts = prompts.to(pl_module.device)
                pl_module.measure(prompts, pl_module.group_size, Stream.INITIAL_RATES, number, sums)
        evaluation = sums.evaluation(pl_module.objective)
        for logger in trainer.loggers:
            logger.log_metrics({f"initial/{tag}": value for tag, value in evaluation.metrics.items()}, step=0)
        if trainer.is_global_zero:
            _show(pl_module.objective, {"train": evaluation}, "Before training")


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
            _show(pl_module.objective, rows, title)
