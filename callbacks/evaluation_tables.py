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
"""Words of a cell, joined by spaces."""
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
    caption = _caption(evaluations)
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    table.add_column(Text(""), justify="left")
    table.add_column(Text("threshold"), justify="right")
    for name, evaluation in evaluations.items():
        prompts = evaluation.prompts + evaluation.repeats
        answers_each = evaluation.answers // max(prompts, 1)
        table.add_column(Text(f"{name} {prompts:,} x {answers_each:,}"), justify="right")

    def add_row(name: str, threshold: Words, cells: Iterable[Words]) -> None:
        table.add_row(Text(name), *(_join_words(words) for words in [threshold, *cells]))

    measured = evaluations.values()
    reward = f"reward {', '.join(objective.rewards)}"
    add_row(reward, [], [_metric_words(evaluation, "reward/mean") for evaluation in measured])
    for name, constraint in _worst_first(objective, evaluations):
        absent = "measured in training" if name in objective.policy_signals else "never observed"
        threshold = _threshold_words(MeasuredConstraint.declared(name, constraint))
        if name in targets:
            threshold.append(f"target {targets[name]:.3g}")
        add_row(name, threshold, [_rate_words(evaluation, name, constraint, absent) for evaluation in measured])
    add_row("answer length", [], [_metric_words(evaluation, "rollout/length") for evaluation in measured])
    return table


def _caption(evaluations: Mapping[str, Evaluation]) -> str:
    caption = "prompts x answers to each; ± standard error and 95 % intervals over prompts"
    if any(evaluation.assumed for evaluation in evaluations.values()):
        caption += ", assumed to be independent"
    for name, evaluation in evaluations.items():
        if evaluation.repeats:
            caption += f"; {evaluation.repeats:,} {name} repeat, accompany or share a sample with a prompt"
    return caption


def _join_words(words: Words) -> Text:
    texts = []
    for word in words:
        texts.append(word if isinstance(word, Text) else Text(word))
    return Text(" ").join(texts)


def _worst_first(objective: Objective, evaluations: Mapping[str, Evaluation]) -> list[tuple[str, Constraint]]:
    """The constraints, with the subsets of one behavior by their violation in the last evaluation."""
    rates = list(evaluations.values())[-1].rates if evaluations else {}
    names = list(objective.constraints)

    def place(name: str) -> tuple[int, float]:
        constraint = objective.constraints[name]
        number = names.index(name)
        if constraint.where is None:
            return number, 0.0
        # All subsets of a behavior are at the place of the first.
        behavior = name.rpartition("/")[0]
        of_behavior = [other for other in names if other.startswith(f"{behavior}/")]
        if of_behavior:
            number = names.index(of_behavior[0])
        excess = rates[name].rate - constraint.bound.target if name in rates else 0.0
        return number, -excess

    return [(name, objective.constraints[name]) for name in sorted(names, key=place)]


def _threshold_words(declared: MeasuredConstraint) -> Words:
    words: Words = []
    if declared.bound.of_mean:
        words.append("mean")
    if declared.condition:
        words.append(declared.condition)
    if not declared.enforced:
        words.append("monitored")
    return words


def _metric_words(evaluation: Evaluation, tag: str) -> Words:
    if not evaluation.metrics:  # only rates were asked for
        return []
    value = evaluation.metrics.get(tag)
    error = evaluation.standard_errors.get(tag)
    if value is None:
        return ["never observed"]
    words: Words = [f"{value:.4g}"]
    if error is not None:
        words.append(f"± {error:.2g}")
    return words


def _rate_words(evaluation: Evaluation, name: str, constraint: Constraint, absent: str) -> Words:
    if name not in evaluation.rates:
        return [absent] if evaluation.metrics else []
    measured = MeasuredConstraint.of(name, constraint, evaluation.rates[name])
    words: Words = [measured.value_text, measured.interval_text]
    if measured.side:
        is_alarming = measured.side == "missed" and measured.enforced
        words.append(Text(measured.side, style="bold red" if is_alarming else ""))
    return words


class EvaluationTable(Callback):
    """Prints rates and thresholds after `validate` and `test`."""

    changes_learning = False

    def setup(self, trainer: Trainer, pl_module: RolloutModule, stage: str) -> None:
        # Lightning's own table repeats the metrics by tag.
        trainer.test_loop.verbose = False
        trainer.validate_loop.verbose = False

    def on_test_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        self._print_table(trainer, pl_module, "Test", ("test_train", "test", "test_follow_ups"))

    def on_validation_end(self, trainer: Trainer, pl_module: RolloutModule) -> None:
        if trainer.state.fn == "validate":
            self._print_table(trainer, pl_module, "Validation", ("val",))

    def _print_table(self, trainer: Trainer, pl_module: RolloutModule, title: str, splits: Sequence[str]) -> None:
        if trainer.is_global_zero:
            evaluations = pl_module.evaluations
            rows = {ROWS[split]: evaluations[split] for split in splits if split in evaluations}
            print_table(objective_table(pl_module.objective, rows, title))
