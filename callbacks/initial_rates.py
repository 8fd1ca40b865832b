"""Rates before training, and the rates within reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.callbacks.evaluation_tables import NO_TARGETS, objective_table
from lightning_cgrpo.core.errors import expect
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.core.randomness import Stream
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.multipliers.dual import Dual
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.objective.chance import shown_targets
from lightning_cgrpo.objective.constraint import POLICY_SIGNALS, Constraint
from lightning_cgrpo.objective.evaluation import Evaluation, RunningSums
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint
from lightning_cgrpo.objective.measurement import EVERY, best_sums
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

SOME_ANSWER = Constraint(at_least=0.5, role="monitor")
"""Shows the share of prompts with an answer that meets all thresholds."""
FAR = 3.0
"""Ratio of the odds at the threshold to the odds before training from which a threshold may not bind."""


class InitialRates(Callback):
    """Prints reward and rates before the first update, and the rates within reach, to choose thresholds.

    A row shows each rate if the best of a prompt's answers were chosen; a warning names thresholds out of reach, and a
    line those that are met by far, which may be swapped or mistyped.
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
        objective = pl_module.objective
        evaluation, best = self._measure_rates(trainer, pl_module)
        pl_module.evaluations["initial"] = evaluation
        metrics = dict(evaluation.metrics)
        for name, constraint in objective.bounded.items():
            if name in best:
                metrics[f"best/{name}"] = constraint.bound.shown(best[name].rate)
        # Without any value of a constraint, no answer is known to meet its threshold.
        if any(name not in best for name in objective.compared):
            best.pop(EVERY, None)
        if EVERY in best:
            metrics["some_answer_meets_all"] = 1 - best[EVERY].rate
        for logger in trainer.loggers:
            logger.log_metrics({f"initial/{tag}": value for tag, value in metrics.items()}, step=0)
        if trainer.is_global_zero:
            # Fixed weights aim at nothing.
            has_targets = any(isinstance(callback, Dual) for callback in trainer.callbacks)  # type: ignore[attr-defined]
            _print_rates(objective, evaluation, best, pl_module.group_size, has_targets)

    def _measure_rates(self, trainer: Trainer, pl_module: RolloutModule) -> tuple[Evaluation, dict[str, ClusteredRate]]:
        """The rates of all answers, and the rates if the best of each prompt's answers were chosen. Collective."""
        objective = pl_module.objective
        sums = RunningSums()
        sums_of_best = RunningSums()
        loader: Any = trainer.train_dataloader
        # Lightning sets the precision for its own steps alone.
        with trainer.precision_plugin.forward_context():
            for number, prompts in enumerate(islice(loader, self.batches)):
                prompts = prompts.to(pl_module.device)
                measured = pl_module.measure(prompts, pl_module.group_size, Stream.INITIAL_RATES, number, sums)
                prompt_sums = best_sums(objective, measured["signals"], pl_module.sampler.longest)
                sums_of_best.add(prompt_sums, prompts, measured["rollouts"])
        pl_module.task.logged()  # of these answers, which are no update's
        return sums.evaluation(objective), sums_of_best.rates(objective.means)


def _print_rates(
    objective: Objective, evaluation: Evaluation, best: Mapping[str, ClusteredRate], size: int, has_targets: bool
) -> None:
    """Print the table, the declared look, the share of prompts within reach, and notes on single thresholds."""
    columns = {"train": evaluation}
    if best and size > 1:
        columns[f"best of {size}"] = Evaluation({}, {}, evaluation.prompts, evaluation.answers, dict(best))
    targets = shown_targets(objective, None) if has_targets else {}  # the dual knows no validation yet
    print_table(objective_table(objective, columns, "Before training", targets))
    if objective.look is not None:
        aim = "Training aims at the targets" if has_targets else "The weights are fixed, so training has no targets"
        print(f"{aim}, for a look with {objective.look}.", flush=True)
    if EVERY in best and size > 1:
        share = replace(MeasuredConstraint.of(EVERY, SOME_ANSWER, best[EVERY]), side="")
        print(f"Prompts with an answer that meets all thresholds: {share.text}.", flush=True)
    for note in threshold_notes(objective, evaluation, best, size, targets):
        print(note, flush=True)


def threshold_notes(
    objective: Objective,
    evaluation: Evaluation,
    best: Mapping[str, ClusteredRate],
    size: int,
    targets: Mapping[str, float] = NO_TARGETS,
) -> Iterator[str]:
    """Yield notes on thresholds that are met by far before training, and warn of thresholds out of reach.

    Args:
        best: rates within reach by constraint, if the best of `size` answers to each prompt were chosen.
        targets: of training for a declared look, see `shown_targets`.
    """
    for name, constraint in objective.constrained.items():
        bound = constraint.bound
        if name in best and bound.side(*bound.interval(best[name])) == "missed":
            rank_zero_warn(out_of_reach(name, constraint, best[name], size))
        elif name in best and name in targets:
            aim = replace(bound, threshold=targets[name])
            if aim.side(*aim.interval(best[name])) == "missed":
                rank_zero_warn(target_out_of_reach(name, aim, best[name], size))
        if name in evaluation.rates and met_by_far(name, constraint, evaluation.rates[name]):
            chosen_rate = best.get(name) if size > 1 else None
            yield does_it_bind(name, constraint, evaluation.rates[name], chosen_rate, size)


def met_by_far(name: str, constraint: Constraint, rate: ClusteredRate) -> bool:
    """True if the policy meets a threshold before training, and is far from it.

    Far is a ratio of odds of `FAR`, a threshold that lets most answers violate it, or for a mean half of the threshold.
    The policy's own signals are left out, because training begins at their best values.
    """
    bound = constraint.bound
    if (constraint.signal or name) in POLICY_SIGNALS or bound.side(*bound.interval(rate)) != "met":
        return False
    value = bound.shown(rate.rate)
    threshold = bound.shown(bound.target)
    if bound.of_mean:
        return abs(value - threshold) > abs(threshold) / 2
    if bound.target > 0.5:
        return True
    # The odds of the larger rate are more than FAR times those of the smaller, without dividing by 0.
    least, most = sorted((value, threshold))
    return most * (1 - least) > FAR * least * (1 - most)


def does_it_bind(name: str, constraint: Constraint, rate: ClusteredRate, best: ClusteredRate | None, size: int) -> str:
    """The line on a threshold that is met before training by far."""
    bound = constraint.bound
    measured = bound.number(bound.shown(rate.rate))
    if best is not None:
        measured += f", best of {size} {bound.number(bound.shown(best.rate))}"
    swapped = "at_most" if bound.lower else "at_least"
    if bound.of_mean:
        swapped = f"mean_{swapped}"
    return (
        f"{name} {bound} is met before training by far ({measured}): does it bind? "
        f"Until the {bound.kind} comes near, it changes nothing. Did you mean {swapped}, or a tighter threshold?"
    )


def out_of_reach(name: str, constraint: Constraint, best: ClusteredRate, size: int) -> str:
    """The warning of a threshold that no choice among the answers reaches."""
    chosen = f"the best of {size} answers to each prompt" if size > 1 else "the policy"
    measured = replace(MeasuredConstraint.of(name, constraint, best), side="")
    bound = measured.bound
    return (
        f"The threshold {name} {bound} is out of reach at the start: {chosen} has a {bound.kind} of "
        f"{measured.text}. Training reweighs answers, so it must discover better "
        "answers first; a policy from scratch may, a fine-tuned policy may need an easier threshold."
    )


def target_out_of_reach(name: str, target: Bound, best: ClusteredRate, size: int) -> str:
    """The warning of a threshold within reach, whose target for the declared look is not."""
    chosen = f"the best of {size} answers to each prompt" if size > 1 else "the policy"
    return (
        f"The target of {name} for the declared look, {target}, is out of reach at the start: {chosen} has a "
        f"{target.kind} of {target.shown(best.rate):.3g}. Try a look with more prompts, whose target is nearer to the "
        "threshold."
    )
