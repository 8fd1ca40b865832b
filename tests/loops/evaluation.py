"""Plain loops over answers: metrics, standard errors and counts of prompts."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean

from lightning_cgrpo.objective.objective import Constraint
from tests.generated import Run
from tests.loops.counts import answers, applies, counted, is_mean, measured, own_mean, own_steps


@dataclass
class Ratio:
    """A metric's numerator and denominator by prompt; equal prompts are one, with more answers."""

    above: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    below: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    most: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The most opportunities that the answers to a prompt can have."""

    def add(self, prompt: str, above: float, below: float, most: float = 1.0) -> None:
        self.above[prompt] += above
        self.below[prompt] += below
        self.most[prompt] += most

    @property
    def observed(self) -> list[str]:
        return [prompt for prompt, number in self.below.items() if number > 0]

    @property
    def value(self) -> float:
        return sum(self.above.values()) / sum(self.below.values())

    def shares(self) -> dict[str, float]:
        """Each prompt's share of the ratio's error."""
        total = sum(self.below.values())
        return {prompt: (self.above[prompt] - self.value * self.below[prompt]) / total for prompt in self.above}

    @property
    def standard_error(self) -> float:
        return clustered(self.shares(), len(self.observed))


def clustered(shares: dict[str, float], prompts: int) -> float:
    """The standard error of a ratio, whose independent samples are prompts."""
    if prompts < 2:
        return 0.0
    return math.sqrt(prompts / (prompts - 1) * sum(share**2 for share in shares.values()))


def ratios(run: Run) -> dict[str, Ratio]:
    """By tag; rewards as reward/NAME, and rates as rates of violation. Without those of which nothing was observed."""
    out: dict[str, Ratio] = defaultdict(Ratio)
    for batch in run.batches:
        for b, g in answers(batch):
            prompt = batch.prompts.columns["prompt"][b]
            out["rollout/length"].add(prompt, len(own_steps(batch, b, g)), 1.0)
            for name in run.objective.rewards:
                there = applies(batch, name, Constraint(), b, g)
                out[f"reward/{name}"].add(prompt, sum(measured(batch, name, b, g)[0]) if there else 0.0, float(there))
            for name, constraint in run.objective.constraints.items():
                signal = batch.signals.get(constraint.signal or name)
                # One of an answer with one value, and otherwise one of each step.
                single = signal is None or (signal.value.dim() == 2 and signal.opportunities is None)
                most = 1.0 if single else float(batch.shape[2])
                tag = f"{'mean' if is_mean(constraint) else 'rate'}/{name}"
                out[tag].add(prompt, *counted(batch, name, constraint, b, g), most)
    return {tag: ratio for tag, ratio in out.items() if ratio.observed}


def metrics(run: Run) -> dict[str, tuple[float, float]]:
    """By tag, the metric as the user declared it, and its standard error."""
    out = {}
    by_tag = ratios(run)
    for tag, ratio in by_tag.items():
        constraint = run.objective.constraints.get(tag.partition("/")[2], Constraint())
        value = ratio.value
        if tag.startswith(("rate/", "mean/")) and constraint.at_least is not None:
            value = 1 - value
        elif tag.startswith("mean/") and constraint.mean_at_least is not None:
            value = -value
        out[tag] = value, ratio.standard_error
    # Shares of the answers to which a signal does not apply.
    everyone = [(batch, *at) for batch in run.batches for at in answers(batch)]
    for name in run.objective.signal_names:
        if name in ("kl", "entropy"):
            there = [own_mean(batch, name, b, g) is not None for batch, b, g in everyone]
        else:
            there = [applies(batch, name, Constraint(), b, g) for batch, b, g in everyone]
        if not all(there):
            out[f"inapplicable/{name}"] = there.count(False) / len(there), 0.0
    rewards = run.objective.rewards
    terms = {name: by_tag.get(f"reward/{name}") for name in rewards}
    if len(rewards) == 1:
        out.pop(f"reward/{next(iter(rewards))}", None)
    if all(terms.values()):
        shares: dict[str, float] = defaultdict(float)
        for name, term in terms.items():
            for prompt, share in term.shares().items():
                shares[prompt] += rewards[name] * share
        prompts = {prompt for term in terms.values() for prompt in term.observed}
        out["reward/mean"] = sum(rewards[n] * term.value for n, term in terms.items()), clustered(shares, len(prompts))
    return out


def cluster_counts(ratio: Ratio) -> tuple[float, ...]:
    """Violating and clean prompts, the effective numbers of both, the mean of the most opportunities, and `telling`."""
    violating = [p for p in ratio.above if ratio.above[p] > 0]
    clean = [p for p in ratio.above if ratio.above[p] < ratio.below[p]]
    effective = []
    for prompts in (violating, clean):
        squares = sum(ratio.below[p] ** 2 for p in prompts)
        effective.append(sum(ratio.below[p] for p in prompts) ** 2 / squares if squares else 0.0)
    most = fmean(max(ratio.most[p], ratio.below[p]) for p in ratio.observed)
    distances = [ratio.above[p] - ratio.value * ratio.below[p] for p in ratio.observed]
    fourths = sum(distance**4 for distance in distances)
    telling = sum(distance**2 for distance in distances) ** 2 / fourths if ratio.standard_error else 0.0
    return len(violating), len(clean), *effective, most, telling
