"""A look at a policy: sampling, verdicts and their table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.configuration import ConfigError, Resolved
from lightning_cgrpo.cli.looks import error_share
from lightning_cgrpo.core.distributed import all_sum, gathered_on_first
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import print_table
from lightning_cgrpo.core.prompts.source import identities
from lightning_cgrpo.core.rollout import Signals, over_steps
from lightning_cgrpo.datamodules.base import GroupDataModule, Used
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.constraint import BOUNDS, Constraint
from lightning_cgrpo.objective.measurement import IDENTITY
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import key
from lightning_cgrpo.objective.verdicts.verdict import Counts, PlannedTest, fewest_prompts, overall, verdicts

SPLIT = "certify"
KEPT = ("checkpoints", "progress")
"""Callbacks that a look needs: reading checkpoints, and the progress bar."""
EDGE = 1e-6
"""Share of a declared range by which a value may lie outside, because of its rounding."""
MEANS = {bound for bound in BOUNDS if bound.startswith("mean")}
STYLES = {"certified": "bold green", "refuted": "bold red", "undecided": "bold yellow"}


@dataclass(frozen=True)
class Asked:
    """The question of a look.

    Args:
        prompts: number of prompts; None for as many as there are.
        confidence: over all constraints and all looks at the run.
        number: of the look, from 1, among the looks at the run.
        used: prompts that the look must not see.
    """

    prompts: int | None
    confidence: float
    number: int
    used: Used

    @property
    def level(self) -> float:
        """The error that this look spends."""
        return (1 - self.confidence) * error_share(self.number)


def look(config: Resolved, objective: Objective, asked: Asked) -> dict[str, Any]:
    """Answer each prompt once, and decide on the first process; {} on others. Collective.

    Raises:
        UserError: there are too few prompts, or signals that give no verdict; nothing is shown of the answers.
    """
    callbacks = {name: value for name, value in (config.get("callbacks") or {}).items() if name in KEPT}
    # Loggers and limits of the run would write, or cut, what the certificate counts.
    trainer = {**(config.get("trainer") or {}), "logger": False, "limit_test_batches": None, "fast_dev_run": False}
    line = _Look(config.replaced(trainer=trainer, callbacks=callbacks), objective, asked)
    if line.rows is None:  # the first process decides
        return {}
    counts = {name: line.counts(name) for name in decided(objective)}
    judged = verdicts(counts, 1 - asked.level)
    constraints: dict[str, dict[str, Any]] = {}
    for name, verdict in judged.items():
        constraint = objective.constrained[name]
        least, width = _range(name, constraint, line.longest)
        low, high = constraint.bound.shown_interval(least + width * verdict.lower, least + width * verdict.upper)
        constraints[name] = {
            "decision": verdict.decision,
            constraint.bound.key: constraint.bound.threshold,
            "rate": None if verdict.rate is None else constraint.bound.shown(least + width * verdict.rate),
            "low": low,
            "high": high,
            "prompts_that_would_decide": verdict.needed,
        }
        if constraint.given is not None:
            constraints[name]["given"] = constraint.given
    return {
        "decision": overall([verdict.decision for verdict in judged.values()]),
        "prompts": line.count,
        "source": line.source,
        "constraints": constraints,
        "identities": [*dict.fromkeys([*line.chosen.identities, *line.accompanying])],
        "new_until": line.chosen.new_until,
    }


def decided(objective: Objective) -> dict[str, Constraint]:
    """The enforced constraints, but for the policy's own signals without a range, because drift has no bound."""
    policy_signals = objective.policy_signals
    return {name: of for name, of in objective.constrained.items() if name not in policy_signals or of.range}


def check_prompts(planned: Mapping[str, PlannedTest], prompts: float, confidence: float, available: int | None) -> None:
    """Refuse a look that could certify nothing even without a violation.

    Args:
        planned: the test of each constraint.
        confidence: of this look.
        available: prompts that the data has; None if the data generates any number.

    Raises:
        ConfigError: too few prompts, or a threshold that no number of prompts certifies.
    """
    for name, test in planned.items():
        if test.threshold == 0:
            raise ConfigError(
                f"Expected thresholds that prompts can certify, but constraint '{name}' allows no violation at all, "
                "try a small rate, such as 0.001."
            )
    fewest = fewest_prompts(list(planned.values()), confidence)
    if not planned or (fewest is not None and prompts >= fewest):
        return
    if fewest is None:
        strictest = min(planned, key=lambda name: planned[name].threshold)
        raise ConfigError(
            f"Expected thresholds that prompts can certify, but constraint '{strictest}' allows a rate of "
            f"{planned[strictest].threshold:g}, for which a billion prompts are too few, try a larger one, such as "
            "0.001."
        )
    more = f"--prompts {fewest} or more"
    if available is not None and available < fewest:
        more = f"a test set of {fewest} prompts or more"
    raise ConfigError(
        f"Expected at least {fewest} prompts, because fewer can't certify {', '.join(planned)} with confidence "
        f"{confidence:.4g} even without a violation, but got {prompts:g}, try {more}."
    )


class _Rows(Callback):
    """Gathers the sums of every prompt; after the first batch, refuses a look that could certify nothing."""

    def __init__(self, line: _Look, prompts: int, available: int | None) -> None:
        self.line, self.prompts, self.available = line, prompts, available
        self.rows: dict[str, Tensor] | None = None
        self.accompanying: list[float] = []
        """Identities of the prompts shown beside others, on the first process."""

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if self.line.chosen.companions is not None:
            shown = outputs["prompts"]
            self.accompanying += identities(shown)[len(shown) // 2 :].tolist()
        if batch_idx:
            return
        # Only the kinds of the signals and the numbers of opportunities are read here: no violation.
        planned = self.line.plan(outputs["signals"])
        check_prompts(planned, self.prompts, 1 - self.line.asked.level, self.available)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RolloutModule)
        self.rows = pl_module.sums(SPLIT).by_prompt()
        everywhere = gathered_on_first(self.accompanying)
        self.accompanying = [] if everywhere is None else [number for part in everywhere for number in part]


class _Look(CommandLine):
    """A test of one answer to each of the prompts that neither trained nor selected."""

    def __init__(self, config: Resolved, objective: Objective, asked: Asked) -> None:
        self.objective, self.asked = objective, asked
        self.rows: dict[str, Tensor] | None = None
        self.source = ""
        self.count = 0
        self.accompanying: list[float] = []
        self.longest: int | None = None
        self.whole: dict[str, bool] = {}
        """By constraint: an answer has at most one opportunity, by the kind of its signal."""
        super().__init__("test", config, [])

    def test(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        ckpt_path: str,
        weights_only: bool,
        verbose: bool = False,
    ) -> None:
        """Takes the place of `Trainer.test`."""
        if not isinstance(model, RolloutModule) or not isinstance(datamodule, GroupDataModule):
            raise UserError(
                "Expected a RolloutModule and a GroupDataModule, which know prompts that did not train, but got "
                f"{type(model).__name__} and {type(datamodule).__name__}."
            )
        datamodule.prepare_data()
        datamodule.setup("test")
        self.longest = model.sampler.longest
        for name, constraint in decided(self.objective).items():
            _range(name, constraint, self.longest)
        endless = getattr(datamodule.source("test"), "endless", False)  # a user's own source may be any class
        whole = datamodule.certification(None, self.asked.used)
        available = None if endless else len(whole.source)
        prompts = self.asked.prompts or len(whole.source)
        # By the exact test, because other tests need more prompts, and the signals' kinds are not known yet.
        exact = {name: PlannedTest(test.threshold) for name, test in self.plan({}).items()}
        check_prompts(exact, min(prompts, available or math.inf), 1 - self.asked.level, available)
        self.chosen = whole if self.asked.prompts is None else datamodule.certification(prompts, self.asked.used)
        self.source, self.count = self.chosen.words, len(self.chosen.source)
        model.eval_group_size = 1
        rows = _Rows(self, self.count, available)
        self.trainer.callbacks.append(rows)  # type: ignore[attr-defined]
        loader = self.chosen.loader(datamodule.eval_prompts)
        self.trainer.test(model, {SPLIT: loader}, ckpt_path, verbose=False, weights_only=weights_only)
        self.rows, self.accompanying = rows.rows, rows.accompanying
        if self.rows:
            self._leave_out_repeats(self.rows.pop(IDENTITY).numpy())

    def plan(self, signals: Signals) -> dict[str, PlannedTest]:
        """The test of each constraint on a rate, by the kinds of the signals and their numbers of opportunities."""
        planned = {}
        for name, constraint in decided(self.objective).items():
            signal = signals.get(key(name, constraint))
            self.whole[name] = signal is not None and signal.of_whole_answers
            if constraint.bound.of_mean:
                continue
            share = None
            if signal is not None and not self.whole[name]:
                opportunities_BG = over_steps(signal.counts()[1]).double()
                answers = torch.tensor(float(opportunities_BG.numel()), device=opportunities_BG.device).double()
                total, answers = all_sum(torch.stack([opportunities_BG.sum(), answers])).tolist()
                share = max(total / answers / (self.longest or 1), 1e-6)
            planned[name] = PlannedTest(constraint.bound.target, share)
        return planned

    def counts(self, name: str) -> Counts:
        """The counts of a constraint in all answers."""
        assert self.rows is not None
        return _counts(self.objective, name, self.rows, self.longest, self.whole.get(name, False))

    def _leave_out_repeats(self, numbers: np.ndarray) -> None:
        """Keep the first of the prompts that a chat template or tokenizer renders alike, and of each sample.

        A verdict counts one answer to each of the independent prompts, so companions of prompts count nothing.
        """
        first = torch.from_numpy(np.sort(np.unique(numbers, return_index=True)[1]))
        assert self.rows is not None
        self.rows = {name: values[first] for name, values in self.rows.items()}
        if repeats := self.count - len(first):
            self.count -= repeats
            self.source += f", without {repeats:,} that read as others do"


def _counts(objective: Objective, name: str, rows: dict[str, Tensor], longest: int | None, whole: bool) -> Counts:
    """The counts of a constraint.

    Args:
        whole: an answer has at most one opportunity, by declaration.
    """
    constraint = objective.constrained[name]
    read = [constraint.signal or name, *([] if constraint.given is None else [constraint.given])]
    faults = max(int(rows[f"faults/{signal}"].sum()) for signal in read)
    if faults:
        raise UserError(
            f"Expected finite signals for a verdict on '{name}', but got {faults} of {len(rows['answers'])} answers "
            "without, try to mend the task's scores; this was no look."
        )
    violations, opportunities = (rows[f"{kind}/{name}"].numpy() for kind in ("violations", "opportunities"))
    least, width = _range(name, constraint, longest)
    violations = (violations - least * opportunities) / width
    if constraint.bound.of_mean:
        # Signals are float32, which rounds a value at the edge of its range.
        rounding = EDGE * opportunities
        if ((violations < -rounding) | (violations > opportunities + rounding)).any():
            raise UserError(
                f"Expected the signal of '{name}' within its range, {constraint.range}, but got other values, try a "
                "wider range:; this was no look."
            )
        violations = violations.clip(0, opportunities)
    most = 1.0 if whole else float(longest or 1)
    if opportunities.max(initial=0) > most or (whole and not np.isin(opportunities, (0, 1)).all()):
        raise UserError(
            f"Expected at most {most:g} opportunities per answer for '{name}', the sampler's longest answer, but "
            f"got {opportunities.max():g}, try a signal of whole answers; this was no look."
        )
    threshold = (constraint.bound.target - least) / width
    return Counts(violations, opportunities, threshold, most, constraint.bound.of_mean)


def _range(name: str, constraint: Constraint, longest: int | None) -> tuple[float, float]:
    """Least level of violation, and the width of its range: 0 and 1 for a rate.

    Raises:
        ConfigError: a mean has no declared range, without which no number of answers bounds it.
    """
    if not constraint.bound.of_mean:
        return 0.0, 1.0
    least, most = constraint.range or (0.0, 0.0)
    if constraint.range is None and (constraint.signal or name) == "tokens" and longest is not None:
        most = float(longest)
    if least == most:
        raise ConfigError(
            f"Expected a range for a certificate of the mean '{name}', because one rare answer could move an unbounded "
            f"mean, but got none, try range: [LEAST, GREATEST] in the constraint."
        )
    return (-most, most - least) if constraint.bound.lower else (least, most - least)


def show(certificate: dict[str, Any], note: str) -> None:
    """Print the table of a certificate."""
    decision, confidence = certificate["decision"], certificate["question"]["confidence"]
    caption = f"{certificate['source']}, one answer to each; confidence {confidence} over all constraints (Holm)"
    if "error" in certificate:
        spent = f"look {certificate['look']} may be wrong with probability {certificate['error']:.4g}"
        caption += f" and all looks at the run: {spent}"
    title = Text.assemble(
        f"{certificate['checkpoint']}, update {certificate['update']}: ", (decision.upper(), STYLES[decision])
    )
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    means = any(MEANS & found.keys() for found in certificate["constraints"].values())
    measured = "measured" if means else "measured rate"
    for column in ("", "threshold", measured, "true value", "verdict", "prompts that would decide"):
        # Names that are cut off would not tell subsets apart.
        table.add_column(
            column, justify="left" if column in ("", "verdict") else "right", no_wrap=column in ("", "true value")
        )
    for name, found in certificate["constraints"].items():
        table.add_row(*_cells(name, found))
    print_table(table)
    if decision == "undecided":
        print("Prompts that would decide do so with 80 % probability, if the rate is the observed rate.")
    print(note, flush=True)


def _cells(name: str, found: Mapping[str, Any]) -> list[Text | str]:
    """The cells of a constraint's row."""
    bound_key = next(bound for bound in BOUNDS if bound in found)
    at_least = bound_key.endswith("at_least")
    threshold = found[bound_key]
    rate = found["rate"]
    decision = found["decision"]

    # The true value is bounded on both sides. The bound toward the threshold decided, or failed to.
    meets = decision == "certified"
    if decision == "undecided" and rate is not None:
        meets = rate >= threshold if at_least else rate <= threshold
    true_value = f"at least {found['low']:.4f}" if meets == at_least else f"at most {found['high']:.4f}"

    prompts = ""
    if decision == "undecided":
        needed = found["prompts_that_would_decide"]
        prompts = "no number" if needed is None else f"{needed:,}"
    return [
        Text(name),
        f"{'>=' if at_least else '<='} {threshold:g}" + (f" given {found['given']}" if "given" in found else ""),
        "never observed" if rate is None else f"{rate:.4f}",
        true_value,
        Text(decision, style=STYLES[decision]),
        prompts,
    ]
