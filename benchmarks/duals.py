"""Controllers of the multipliers on two bandits, against the exact optimum (a linear program).

    OMP_NUM_THREADS=1 python -m benchmarks.duals            # about ten minutes on one CPU core

Each controller plays with its default arguments, and with the best of `BUDGET` settings. The best setting has the least
`regret` on a seed of its own; it is chosen for each bandit, which favors the controllers that need it. The table has
means over five other seeds, in benchmarks/results/duals.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.multipliers import (
    PID,
    Controller,
    DampedAscent,
    ExponentiatedGradient,
    NuPI,
    ProjectedAscent,
    SoftmaxAdam,
    standard_units,
)
from tests.multipliers.bandit import FEASIBLE, INFEASIBLE, Bandit, Trajectory, train

UPDATES, SEEDS, SEARCH_SEED, WINDOW = 400, range(5), 100, 25
RESULT = Path(__file__).parent / "results" / "duals.md"

GAINS = ((1.0, 0.05), (1.0, 0.2), (5.0, 0.2), (10.0, 0.2), (10.0, 0.5), (20.0, 0.5))
SETTINGS: dict[str, tuple[Callable[..., Controller], list[dict[str, Any]]]] = {
    "DampedAscent (default)": (
        DampedAscent,
        [{"gain": gain, "time": time} for gain in (5.0, 10.0, 20.0) for time in (30.0, 60.0)],
    ),
    "SoftmaxAdam (the paper's)": (SoftmaxAdam, [{"lr": lr} for lr in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)]),
    "ExponentiatedGradient": (ExponentiatedGradient, [{"lr": lr} for lr in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)]),
    "ProjectedAscent": (ProjectedAscent, [{"lr": lr} for lr in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)]),
    "PID": (PID, [{"kp": kp, "ki": ki} for kp, ki in GAINS]),
    "NuPI": (NuPI, [{"kp": kp, "ki": ki} for kp, ki in GAINS]),
}
BUDGET = 6


class Score:
    """Measures of one run; constraints that no policy meets are left out of the measures of violation."""

    def __init__(self, bandit: Bandit, run: Trajectory) -> None:
        thresholds = torch.tensor(bandit.thresholds, dtype=torch.float64)
        feasible = [k for k in range(2) if min(arm[1 + k] for arm in bandit.arms) <= bandit.thresholds[k]]
        violations = ((run.rates - thresholds) / standard_units(thresholds))[:, feasible]
        smooth = moving_mean(violations)
        met = (smooth <= 0).all(1).nonzero().flatten()
        self.first = float(met[0]) if len(met) else float("nan")
        self.worst = float(smooth[int(met[0]) :].max()) if len(met) else float("nan")
        half = len(smooth) // 2
        self.oscillation = float(smooth[half:].std(0).max())
        self.reward = float(run.rewards[half:].mean())
        self.rates = run.rates[half:].mean(0)
        lost = (reference(bandit) - moving_mean(run.rewards[:, None])[:, 0]).clamp(min=0) / reference(bandit)
        self.regret = float((smooth.clamp(min=0).sum(1) + lost).mean())


def moving_mean(values: Tensor) -> Tensor:
    return values.unfold(0, WINDOW, 1).mean(-1)


def reference(bandit: Bandit) -> float:
    """The greatest reward of the constraints that can be met."""
    lowest = [min(arm[1 + k] for arm in bandit.arms) for k in range(2)]
    kept = tuple(d if low <= d else 1.0 for d, low in zip(bandit.thresholds, lowest, strict=True))
    return Bandit(bandit.arms, kept).optimum()  # type: ignore[arg-type] # two thresholds


def scores(bandit: Bandit, make: Callable[..., Controller], setting: dict[str, Any], seeds: range) -> list[Score]:
    return [Score(bandit, train(bandit, make(**setting), updates=UPDATES, seed=seed)) for seed in seeds]


def row(name: str, setting: dict[str, Any], runs: list[Score]) -> str:
    def mean(measure: str) -> float:
        return sum(getattr(run, measure) for run in runs) / len(runs)

    rates = torch.stack([run.rates for run in runs]).mean(0).tolist()
    words = ", ".join(f"{key} {value:g}" for key, value in setting.items()) or "default"
    return (
        f"| {name} | {words} | {mean('first'):.0f} | {mean('worst'):+.3f} | {mean('oscillation'):.3f} | "
        f"{rates[0]:.3f} {rates[1]:.3f} | {mean('reward'):.3f} | {mean('regret'):.3f} |"
    )


def table(bandit: Bandit) -> list[str]:
    lines = [
        "| controller | setting | feasible at update | worst after | oscillation | rates | reward | regret |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (make, settings) in SETTINGS.items():
        assert len(settings) == BUDGET
        lines.append(row(name, {}, scores(bandit, make, {}, SEEDS)))
        one = range(SEARCH_SEED, SEARCH_SEED + 1)
        best = min(settings, key=lambda setting: scores(bandit, make, setting, one)[0].regret)
        lines.append(row(name, best, scores(bandit, make, best, SEEDS)))
        print("\n".join(lines[-2:]), flush=True)
    return lines


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    text = [
        "# Controllers on two bandits",
        "",
        f"Written by `python -m benchmarks.duals`: {UPDATES} updates, means over {len(SEEDS)} seeds. A controller's",
        f"first row has its defaults, the second row the best of {BUDGET} settings for that bandit. Violations are in",
        f"standard units, smoothed over {WINDOW} updates. *Regret* is the mean over updates of the violations plus the",
        "lost share of the reward. On the infeasible bandit, the second constraint counts in no measure but its rate.",
    ]
    for title, bandit in (("Feasible", FEASIBLE), ("Infeasible", INFEASIBLE)):
        text += [
            "",
            f"## {title}: thresholds {bandit.thresholds}, the optimum's reward is {reference(bandit):.3f}",
            "",
            *table(bandit),
        ]
    RESULT.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
