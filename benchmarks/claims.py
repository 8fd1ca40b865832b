"""The paper's claims that committed runs decide, as differences paired by seed, with 95 % intervals.

    python -m benchmarks.claims     # seconds; reads docs/results, trains nothing

Student's interval over seeds holds for other seeds, not for other prompts, scenes or models. docs/claims.md says which
claim of the paper each row is about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_cgrpo.cli.study.comparison import Difference, difference

RESULTS = Path(__file__).parents[1] / "docs/results"
SEEDS = range(10)
SAME = {"gridworld/paper/scalarized_advantages_lava_0.01_battery_0.01": "gridworld/controllers/softmax_adam"}
"""Methods whose other seeds are another study's, of equal settings."""
ScoreKey = tuple[str, str]
BOTH: ScoreKey = ("both", "EPDMS")
FIRST: ScoreKey = ("stage_one", "EPDMS")


@dataclass(frozen=True)
class Comparison:
    """One measure of two methods.

    Args:
        measure: words.
        method: folder and name of the runs, such as ``gsm8k/paper/gdpo``.
        other: the method that `method` is compared with.
        key: of the run's test or final means, or of the official scores of driving.
    """

    measure: str
    method: str
    other: str
    key: str | ScoreKey


def gridworld() -> Iterator[Comparison]:
    for thresholds in ("lava_0.01_battery_0.01", "lava_0.01", "lava_0.01_battery_0.1"):
        methods = (f"gridworld/paper/scalarized_{kind}_{thresholds}" for kind in ("advantages", "rewards"))
        advantages, rewards = methods
        for measure, key in (("goal", "reward/mean"), ("lava rate", "rate/lava")):
            yield Comparison(f"{measure}, last 1,000 updates", advantages, rewards, key)
    for weight in ("0.01", "0.1", "0.3", "0.5", "0.7", "1"):
        advantages, rewards = (
            f"gridworld/sweep/scalarized_{of}_lava_{weight}_battery_0" for of in ("advantages", "rewards")
        )
        yield Comparison("goal, test", advantages, rewards, "test/reward/mean")
        yield Comparison("lava rate, test", advantages, rewards, "test/rate/lava")


def driving() -> Iterator[Comparison]:
    constrained = "navsim/main/cgrpo_pooled_scale"
    methods = "navsim/methods"
    pairs = [
        (constrained, f"{methods}/cgrpo_scalarized_rewards"),
        (f"{methods}/equal_weights", f"{methods}/equal_weights_scalarized_rewards"),
        ("navsim/main/informed_weights", f"{methods}/informed_weights_scalarized_rewards"),
        (constrained, f"{methods}/equal_weights"),
        (constrained, "navsim/main/informed_weights"),
        (constrained, f"{methods}/grpo_epdms"),
        (constrained, f"{methods}/ppo_lagrangian"),
        (constrained, f"{methods}/cgrpo_group_scale"),
    ]
    for method, other in pairs:
        yield Comparison("EPDMS, first stage", method, other, FIRST)
        yield Comparison("EPDMS, both stages", method, other, BOTH)


def word_problems() -> Iterator[Comparison]:
    paper = "gsm8k/paper"
    pairs = [
        (f"{paper}/scalarized_advantages", f"{paper}/gdpo"),
        (f"{paper}/scalarized_advantages", f"{paper}/scalarized_rewards"),
        ("gsm8k/critics/scalarized_advantages", "gsm8k/critics/ppo_lagrangian"),
        (f"{paper}/scalarized_advantages", f"{paper}/fixed_weights"),
        (f"{paper}/scalarized_advantages", f"{paper}/dual_rate_1e-4"),
        ("gsm8k/estimators/pooled", "gsm8k/estimators/group"),
    ]
    for method, other in pairs:
        yield Comparison("correctness, test", method, other, "test/rate/correctness")
        yield Comparison("tokens, test", method, other, "test/rollout/length")


def values(method: str, key: str | ScoreKey) -> dict[int, float]:
    """A measure by seed."""
    if method in SAME:
        return values_in(SAME[method], key) | values_in(method, key)
    return values_in(method, key)


def values_in(method: str, key: str | ScoreKey) -> dict[int, float]:
    """A measure by seed, of one folder's runs."""
    folder, name = method.rsplit("/", 1)
    if isinstance(key, tuple):
        stage, column = key
        scores = json.loads((RESULTS / folder / "scores.json").read_text())
        by_seed = {seed: scores.get(f"{name}_seed{seed}") for seed in SEEDS}
        return {seed: score[stage][column] for seed, score in by_seed.items() if score is not None}
    part = "tests" if key.startswith("test/") else "final"
    found: dict[int, float] = {}
    for seed in SEEDS:
        file = RESULTS / folder / "runs" / f"{name}_seed{seed}.json"
        if file.is_file():
            found[seed] = json.loads(file.read_text())[part][key]
    return found


def main() -> None:
    print("| method | minus | measure | seeds | difference (95 %) |\n|---|---|---|---:|---|")
    for comparison in [*gridworld(), *driving(), *word_problems()]:
        method, other = values(comparison.method, comparison.key), values(comparison.other, comparison.key)
        gain = difference(other, method)
        assert gain is not None, f"no common seed of {comparison}"
        names = (name.split("/", 1)[1] for name in (comparison.method, comparison.other))
        print(f"| {' | '.join(names)} | {comparison.measure} | {gain.seeds} | {shown(gain)} |")


def shown(gain: Difference) -> str:
    """A difference with its interval: rates with three digits, tokens with one; a rate below 0.01 with four."""
    largest = max(abs(gain.mean), gain.half)
    digits = 1 if largest >= 1 else 4 if largest < 0.01 else 3
    low, high = gain.mean - gain.half, gain.mean + gain.half
    return f"{gain.mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


if __name__ == "__main__":
    main()
