"""What the package computes with tensors, written down again in plain loops over answers and steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev

from torch import Tensor

from lightning_cgrpo.objective.objective import Constraint, Objective
from tests.generated import Batch, Run

Values = dict[tuple[int, ...], float]
"""Numbers by answer (b, g), or by step (b, g, t)."""


def answers(batch: Batch) -> Iterator[tuple[int, int]]:
    for b in range(batch.shape[0]):
        for g in range(batch.shape[1]):
            yield b, g


def own_steps(batch: Batch, b: int, g: int) -> list[int]:
    return [t for t in range(batch.shape[2]) if batch.rollouts.mask[b, g, t]]


# ---------------------------------------------------------------- counts


def applies(batch: Batch, signal: str, constraint: Constraint, b: int, g: int) -> bool:
    """Whether a signal measures an answer, and the answer's prompt is in the constraint's subset."""
    for column, value in (constraint.where or {}).items():
        element = batch.prompts.columns[column][b]
        if str(int(element) if column == "size" else element) != str(value):
            return False
    applicable = batch.signals[signal].applicable
    return applicable is None or bool(applicable[b, g])


def measured(batch: Batch, signal: str, b: int, g: int) -> tuple[list[float], float, float]:
    """The values of an answer (one, or one for each step), the occurrences, and the opportunities."""
    of = batch.signals[signal]
    if of.value.dim() == 3:
        values = [float(of.value[b, g, t]) for t in own_steps(batch, b, g)]
        return values, sum(values), len(values)
    value = float(of.value[b, g])
    count = value if of.count is None else float(of.count[b, g])
    return [value], count, 1.0 if of.opportunities is None else float(of.opportunities[b, g])


def from_number(constraint: Constraint) -> bool:
    return constraint.violated_above is not None or constraint.violated_below is not None


def violates(constraint: Constraint, value: float) -> bool:
    if constraint.violated_above is not None:
        return value > constraint.violated_above
    return value < constraint.violated_below


def counted(batch: Batch, name: str, constraint: Constraint, b: int, g: int) -> tuple[float, float]:
    """Violations and opportunities of an answer, or the sum and the number of a mean's values."""
    signal = constraint.signal or name
    if signal in ("kl", "entropy"):
        mean = own_mean(batch, signal, b, g)
        count, opportunities = (0.0, 0.0) if mean is None else (mean, 1.0)
    elif not applies(batch, signal, constraint, b, g):
        return 0.0, 0.0
    else:
        values, count, opportunities = measured(batch, signal, b, g)
        if from_number(constraint):
            return float(sum(violates(constraint, value) for value in values)), float(len(values))
    if constraint.mean_at_most is not None:
        return count, opportunities
    if constraint.mean_at_least is not None:
        return -count, opportunities
    return opportunities - count if constraint.at_least is not None else count, opportunities


def own_mean(batch: Batch, signal: str, b: int, g: int) -> float | None:
    """The mean over an answer's steps of what the policy computed there; None without steps."""
    values = batch.examples.targets[signal]
    steps = own_steps(batch, b, g)
    if values.dim() == 2:
        row = b * batch.shape[1] + g
        return fmean(float(values[row, t]) for t in steps) if steps else None
    # Units are single steps, answer after answer.
    first = sum(len(own_steps(batch, *answer)) for answer in answers(batch) if answer < (b, g))
    return fmean(values[first : first + len(steps)].tolist()) if steps else None


# ---------------------------------------------------------------- components


@dataclass
class Part:
    """A component where it applies: by answer its sum, and its values at the answer's own steps."""

    sums: Values = field(default_factory=dict)
    steps: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def add(self, batch: Batch, b: int, g: int, values: list[float], by_step: bool) -> None:
        self.sums[b, g] = sum(values)
        steps = len(own_steps(batch, b, g))
        # The value of a whole answer stands at the last step.
        self.steps[b, g] = values if by_step else [*[0.0] * (steps - 1), *values][:steps]

    def group(self, b: int) -> dict[int, float]:
        return group(self.sums, b)


def components(run: Run, batch: Batch) -> list[Part]:
    """Rewards, and then the constraints on the task's signals."""
    parts = []
    for name in run.objective.rewards:
        part = Part()
        for b, g in answers(batch):
            if applies(batch, name, Constraint(), b, g):
                part.add(batch, b, g, measured(batch, name, b, g)[0], by_step(batch, name))
        parts.append(part)
    for name, constraint in run.objective.compared.items():
        signal, part = constraint.signal or name, Part()
        for b, g in answers(batch):
            if applies(batch, signal, constraint, b, g):
                part.add(batch, b, g, gains(batch, signal, constraint, b, g), by_step(batch, signal))
        parts.append(part)
    return parts


def by_step(batch: Batch, signal: str) -> bool:
    return batch.signals[signal].value.dim() == 3


def gains(batch: Batch, signal: str, constraint: Constraint, b: int, g: int) -> list[float]:
    """What a constraint adds to an answer's advantage: one value, or one for each step."""
    values, _, opportunities = measured(batch, signal, b, g)
    chances = [1.0] * len(values) if by_step(batch, signal) else [opportunities]
    wanted = constraint.at_least is not None or constraint.mean_at_least is not None
    if from_number(constraint):
        values, wanted = [float(violates(constraint, value)) for value in values], False
    of = batch.signals[signal]
    # A value beside its count is a cost of its own, and a number of an answer is violated or not.
    over_chances = of.count is None and of.opportunities is not None
    if over_chances:
        excess = []
        for value, chance in zip(values, chances, strict=True):
            violation = value
            if wanted:
                violation = -value if is_mean(constraint) else chance - value
            excess.append(target(constraint) * chance - violation)
        return excess
    return values if wanted else [-value for value in values]


def group(values: Values, b: int) -> dict[int, float]:
    """Values of a prompt's answers, by answer."""
    return {at[1]: value for at, value in values.items() if at[0] == b}


# ---------------------------------------------------------------- advantages [B, G]


def weighted(run: Run, batch: Batch) -> list[tuple[float, Part]]:
    return list(zip(run.component_weights.tolist(), components(run, batch), strict=True))


def spread(values: list[float]) -> float:
    """Population standard deviation, 0 for what rounding leaves."""
    std = pstdev(values) if values else 0.0
    return std if std > 1e-9 else 0.0


def scalarized_advantages(run: Run, batch: Batch) -> Values:
    """The paper's, equation 5: the sum of weighted standardized components."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            members = part.group(b)
            std = spread(list(members.values()))
            for g, value in members.items():
                total[b, g] += weight * (value - fmean(members.values())) / std if std else 0.0
    return total


def pooled_advantages(runs: Iterable[Run]) -> Iterator[Values]:
    """The default: excess over a baseline without the answer, over one deviation for each component.

    Args:
        runs: one for each update, with the update's batch and weights.
    """
    squares, numbers = defaultdict(float), 0.0
    for run in runs:
        [batch] = run.batches
        parts = weighted(run, batch)
        used = {at for _, part in parts for at in part.sums}
        numbers = 0.95 * numbers + len(used)
        total: Values = dict.fromkeys(used, 0.0)
        for j, (weight, part) in enumerate(parts):
            overall = fmean(part.sums.values()) if part.sums else 0.0
            excess, fresh = {}, 0.0
            for b in range(batch.shape[0]):
                members = part.group(b)
                for g, value in members.items():
                    others = [members[other] for other in members if other != g]
                    if len(members) < batch.shape[1]:  # the mean of all prompts is one more value
                        others.append(overall)
                    excess[b, g] = value - fmean(others)
                    fresh += excess[b, g] ** 2 / (1 + (len(members) - 1) / len(others) ** 2)
            squares[j] = 0.95 * squares[j] + fresh
            deviation = math.sqrt(squares[j] / numbers) if numbers else 0.0
            deviation = max(deviation, math.sqrt(fresh / len(used)) / 2 if used else 0.0)
            for at, value in excess.items():
                total[at] += weight * value / deviation if deviation > 1e-9 else 0.0
        yield total


def deviations(run: Run, batch: Batch) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """By answer, the weight and the deviation from its group's mean of each component that applies."""
    out = defaultdict(list)
    for weight, part in weighted(run, batch):
        for at, value in part.sums.items():
            out[at].append((weight, value - fmean(part.group(at[0]).values())))
    return out


def scalarized_rewards(run: Run, batch: Batch, over_batch: bool) -> Values:
    """The sum of weighted components, standardized by the deviation of its group, or of the batch."""
    total = {at: sum(weight * value for weight, value in parts) for at, parts in deviations(run, batch).items()}
    raw: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for at, value in part.sums.items():
            raw[at] += weight * value
    out = {}
    for at, value in total.items():
        std = spread(list(group(total, at[0]).values()))
        if over_batch:
            std = stdev(raw.values()) if len(raw) > 1 else 0.0
        out[at] = value / std if std > 1e-7 else 0.0
    return out


def leave_one_out(run: Run, batch: Batch) -> Values:
    """The sum of weighted components, each minus the mean of the group's other answers."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for (b, g), value in part.sums.items():
            others = [other for i, other in part.group(b).items() if i != g]
            total[b, g] += weight * (value - fmean(others)) if others else 0.0
    return total


def gdpo(run: Run, batch: Batch, eps: float) -> Values:
    """The formula of the public code: components by their sample deviation, and the sum whitened over the batch."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            members = part.group(b)
            for g, value in members.items():
                std = stdev(members.values()) if len(members) > 1 else 0.0
                total[b, g] += weight * (value - fmean(members.values())) / (std + eps)
    if len(total) < 2:
        return dict.fromkeys(total, 0.0)
    mean, std = fmean(total.values()), stdev(total.values())
    return {at: (value - mean) / (std + eps) for at, value in total.items()}


# ---------------------------------------------------------------- advantages of steps [B, G, T]


def returns_to_go(run: Run, batch: Batch, gamma: float) -> Values:
    """What follows a step, minus the mean of the group's answers that take the step, over the group's deviation."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            returns = {}
            for g in range(batch.shape[1]):
                rewards = part.steps.get((b, g), [])
                for number, t in enumerate(own_steps(batch, b, g) if rewards else []):
                    returns[g, t] = sum(gamma**i * reward for i, reward in enumerate(rewards[number:]))
            excess = {
                (g, t): value - fmean(other for (_, at), other in returns.items() if at == t)
                for (g, t), value in returns.items()
            }
            std = math.sqrt(fmean(value**2 for value in excess.values())) if excess else 0.0
            for (g, t), value in excess.items():
                total[b, g, t] += weight * value / std if std > 1e-9 else 0.0
    return total


Predictions = Mapping[tuple[int, int], Tensor]
"""Of a critic, by answer: ``[steps, components]`` before each of its steps."""


def generalized(run: Run, batch: Batch, predicted: Predictions, gamma: float, gae_lambda: float) -> list[Values]:
    """Generalized advantages of each component."""
    out = []
    for j, part in enumerate(components(run, batch)):
        advantages: Values = {}
        for b, g in part.steps:
            steps, rewards = own_steps(batch, b, g), part.steps[b, g]
            values = [*predicted[b, g][:, j].tolist(), 0.0]
            errors = [rewards[i] + gamma * values[i + 1] - values[i] for i in range(len(steps))]
            for i, t in enumerate(steps):
                later = enumerate(errors[i:])
                advantages[b, g, t] = sum((gamma * gae_lambda) ** n * error for n, error in later)
        out.append(advantages)
    return out


def varies(batch: Batch, part: Part, gamma: float) -> bool:
    """Whether any two answers of the batch have another discounted sum of a component."""
    discounted = []
    for (b, g), rewards in part.steps.items():
        steps = own_steps(batch, b, g)
        discounted.append(sum(gamma**t * reward for t, reward in zip(steps, rewards, strict=True)))
    return len(discounted) > 1 and stdev(discounted) > 1e-9


def critic_advantages(
    run: Run, batch: Batch, predicted: Predictions, gamma: float, gae_lambda: float, standardized: bool
) -> Values:
    """Weighted advantages of the components: each standardized over the batch's steps, or their sum."""
    weights = [weight * varies(batch, part, gamma) for weight, part in weighted(run, batch)]
    total: Values = defaultdict(float)
    for weight, values in zip(weights, generalized(run, batch, predicted, gamma, gae_lambda), strict=True):
        mean, std = (fmean(values.values()), stdev(values.values())) if len(values) > 1 else (0.0, 0.0)
        for at, value in values.items():
            if standardized:
                total[at] += weight * (value - mean) / std if std > 1e-9 else 0.0
            else:
                total[at] += weight * value
    if standardized or len(total) < 2:
        return total if standardized else dict.fromkeys(total, 0.0)
    mean, std = fmean(total.values()), stdev(total.values())
    return {at: (value - mean) / std if std > 1e-9 else 0.0 for at, value in total.items()}


# ---------------------------------------------------------------- the dual step


def target(constraint: Constraint, update: int = 10**6, aim: bool = False) -> float:
    """The largest allowed rate of violation (or mean) in an update."""
    end = next(x for x in (constraint.at_most, constraint.at_least, constraint.mean_at_most, constraint.mean_at_least)
               if x is not None)  # fmt: skip
    threshold = end
    if constraint.over is not None and update < constraint.over:
        threshold = constraint.start + (end - constraint.start) * update / constraint.over
    if aim and threshold == end and constraint.aim is not None:
        threshold = constraint.aim
    if constraint.at_least is not None:
        return 1 - threshold
    return -threshold if constraint.mean_at_least is not None else threshold


def is_mean(constraint: Constraint) -> bool:
    return constraint.mean_at_most is not None or constraint.mean_at_least is not None


def dual_steps(
    objective: Objective, batches: list[Batch], every: int, margin: float, standard: bool
) -> Iterator[dict[str, float | None]]:
    """In each dual step, how far each rate exceeds its target; None where nothing was observed."""
    counts = dict.fromkeys(objective.constrained, (0.0, 0.0))
    spreads = dict.fromkeys(objective.constrained, (0.0, 0.0))
    for update, batch in enumerate(batches):
        for name, constraint in objective.constrained.items():
            pairs = {at: counted(batch, name, constraint, *at) for at in answers(batch)}
            violations, opportunities = counts[name]
            counts[name] = (
                violations + sum(pair[0] for pair in pairs.values()),
                opportunities + sum(pair[1] for pair in pairs.values()),
            )
            squares, freedom = within_groups(pairs, batch.shape[0])
            spreads[name] = (0.95 * spreads[name][0] + squares, 0.95 * spreads[name][1] + freedom)
        if (update + 1) % every == 0:
            step: dict[str, float | None] = {}
            for name, constraint in objective.constrained.items():
                violations, opportunities = counts[name]
                if constraint.where is not None and opportunities < 30:
                    step[name] = None  # counts of a subset wait until there are enough
                    continue
                counts[name] = (0.0, 0.0)
                rate = violations / opportunities if opportunities else None
                step[name] = exceeded(name, constraint, rate, spreads[name], update, margin, standard)
            yield step


def within_groups(pairs: dict[tuple[int, int], tuple[float, float]], prompts: int) -> tuple[float, float]:
    """Squares of the deviations of answers' means from their groups' means, and degrees of freedom."""
    squares, freedom = 0.0, 0.0
    for b in range(prompts):
        means = [value / number for (row, _), (value, number) in pairs.items() if row == b and number > 0]
        if means:
            squares += len(means) * spread(means) ** 2
            freedom += len(means) - 1
    return squares, freedom


def exceeded(
    name: str,
    constraint: Constraint,
    rate: float | None,
    spread_of_mean: tuple[float, float],
    update: int,
    margin: float,
    standard: bool,
) -> float | None:
    """(rate - target) / unit."""
    if rate is None:
        return None
    goal, in_force = target(constraint, update, aim=True), target(constraint, update)
    if not is_mean(constraint):
        share = min((1 - goal) / goal, 1.0)
        goal *= 1 - margin / math.sqrt(1 + update) * share
        unit = math.sqrt(in_force * (1 - in_force)) if standard else 1.0
        return (rate - goal) / unit
    if (constraint.signal or name) == "kl":
        return max(-10.0, min(10.0, (rate - goal) / abs(in_force)))
    squares, freedom = spread_of_mean
    if squares == 0:
        return None
    return max(-10.0, min(10.0, (rate - goal) / math.sqrt(squares / freedom)))


# ---------------------------------------------------------------- evaluation


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
        absent = 0
        for batch, b, g in everyone:
            own = name in ("kl", "entropy")
            there = own_mean(batch, name, b, g) is not None if own else applies(batch, name, Constraint(), b, g)
            absent += not there
        if absent:
            out[f"inapplicable/{name}"] = absent / len(everyone), 0.0
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
    """Violating and clean prompts, the effective numbers of both, and the mean of the most opportunities."""
    kinds = (
        [p for p in ratio.above if ratio.above[p] > 0],
        [p for p in ratio.above if ratio.above[p] < ratio.below[p]],
    )
    effective = []
    for prompts in kinds:
        squares = sum(ratio.below[p] ** 2 for p in prompts)
        effective.append(sum(ratio.below[p] for p in prompts) ** 2 / squares if squares else 0.0)
    most = fmean(max(ratio.most[p], ratio.below[p]) for p in ratio.observed)
    return len(kinds[0]), len(kinds[1]), *effective, most
