"""Tables of rates and thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from lightning.pytorch import Callback, Trainer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.objective.objective import Objective

ROWS = {"val": "validation", "test_train": "train", "test": "test", "test_follow_ups": "follow-ups"}

Words = list[str | Text]
NO_TARGETS: Mapping[str, float] = MappingProxyType({})


def objective_table(
    objective: Objective, evaluations: Mapping[str, Evaluation], title: str, targets: Mapping[str, float] = NO_TARGETS
) -> Table:
    """Reward and length with standard errors, rates with intervals, and thresholds; a row per behavior.

    A threshold is ``met`` or ``missed`` if the whole interval is on that side, else ``undecided``; ``too few``, if as
    many prompts could not meet it even without a violation.

    Args:
        evaluations: by name of the set of prompts.
        targets: of training for a declared look, by constraint, in the user's orientation.
    """
    repeats = [
        f"; {of.repeats:,} {name} repeat, accompany or share a sample with a prompt"
        for name, of in evaluations.items()
        if of.repeats
    ]
    assumed = ", assumed to be independent" if any(of.assumed for of in evaluations.values()) else ""
    caption = f"prompts x answers to each; ± standard error and 95 % intervals over prompts{assumed}{''.join(repeats)}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    drawn = {name: (of.prompts + of.repeats, of.answers) for name, of in evaluations.items()}
    sizes = [f"{name} {prompts:,} x {answers // max(prompts, 1):,}" for name, (prompts, answers) in drawn.items()]
    for number, head in enumerate(["", "threshold", *sizes]):
        table.add_column(Text(head), justify="right" if number else "left")

    def add_row(name: str, threshold: Words, cells: Iterable[Words]) -> None:
        table.add_row(Text(name), *(_joined(words) for words in [threshold, *cells]))

    measured = evaluations.values()
    add_row(f"reward {', '.join(objective.rewards)}", [], (_measured(of, "reward/mean") for of in measured))
    for name, constraint in _worst_first(objective, evaluations):
        absent = "measured in training" if name in objective.policy_signals else "never observed"
        threshold = _threshold(MeasuredConstraint.declared(name, constraint))
        target = [f"target {targets[name]:.3g}"] if name in targets else []
        add_row(name, [*threshold, *target], (_rate(of, name, constraint, absent) for of in measured))
    add_row("answer length", [], (_measured(of, "rollout/length") for of in measured))
    return table


def _joined(words: Words) -> Text:
    return Text(" ").join(word if isinstance(word, Text) else Text(word) for word in words)


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


def _threshold(declared: MeasuredConstraint) -> Words:
    kind = "mean" if declared.bound.of_mean else ""
    return [*filter(None, [kind, declared.condition, "" if declared.enforced else "monitored"])]


def _measured(of: Evaluation, tag: str) -> Words:
    if not of.metrics:  # only rates were asked for
        return []
    value, error = of.metrics.get(tag), of.standard_errors.get(tag)
    if value is None:
        return ["never observed"]
    return [f"{value:.4g}", *([] if error is None else [f"± {error:.2g}"])]


def _rate(of: Evaluation, name: str, constraint: Constraint, absent: str) -> Words:
    if name not in of.rates:
        return [absent] if of.metrics else []
    measured = MeasuredConstraint.of(name, constraint, of.rates[name])
    alarming = measured.side == "missed" and measured.enforced
    says = [Text(measured.side, style="bold red" if alarming else "")] if measured.side else []
    return [measured.value_text, measured.interval_text, *says]


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
            print_table(objective_table(pl_module.objective, rows, title))
