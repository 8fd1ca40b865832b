"""Twelve specifications, and how many training runs it takes until each has a certified policy.

    python -m benchmarks.specifications --train declared paper_dual   # three CPU minutes for each missing run
    python -m benchmarks.specifications                               # a minute: the tables of the committed runs
    python -m benchmarks.specifications --write                       # the same into the page, and the figure

`specifications.yaml` was committed before any run.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.first_looks import ROOT
from benchmarks.specifications.curves import (
    Counts,
    Policies,
    Policy,
    certified,
    difference,
    rates_text,
    share_of,
    shares_of_pool,
    unsurpassed,
)
from benchmarks.specifications.judged import LONGEST, objective
from benchmarks.specifications.runs import LOOKED, METHODS, POOL, SELECTING, runs_of, specifications, train

RESULTS = ROOT / "docs/results/specifications"
TESTED = 1_000
"""Problems of ``test`` in configs/gsm8k.yaml."""
MARKS = "<!-- python -m benchmarks.specifications --write -->", "<!-- end -->"
WORDS = {
    "declared": "declared with a planned look",
    "before": "the same before the mend",
    "paper_dual": "the paper's dual",
    "gdpo": "GDPO",
    "pool": "the best of the fixed weights",
}
TRAINED = [method for method in METHODS if method != "before"]
COLORS = {"declared": "#1f5fa8", "before": "#8fb3d9", "paper_dual": "#7a4fa3", "gdpo": "#3a8f5c", "pool": "#b5651d"}


def measures(policies: Policies) -> dict[str, Counts]:
    """What is counted, by its words."""
    methods = [method for method in METHODS if policies.seeds(method)]
    return {"certified": certified, "certified, and no method has more reward": unsurpassed(policies, methods)}


def lines(policies: Policies, counts: Counts) -> dict[str, tuple[list[int], list[float]]]:
    """Training runs, and the share of the specifications whose chosen policy counts, by method."""
    drawn: dict[str, tuple[list[int], list[float]]] = {}
    for method in METHODS:
        seeds = range(1, policies.seeds(method) + 1)
        if method == "pool" and seeds:
            shares = shares_of_pool(policies, counts)
            drawn[method] = [*range(1, len(shares) + 1)], shares
        elif seeds:
            of_a_seed = sum(1 for _ in runs_of(method, 1))
            shares = [share_of(policies, method, count, counts) for count in seeds]
            drawn[method] = [0, *(of_a_seed * count for count in seeds)], [0.0, *shares]
    return drawn


def table(policies: Policies) -> str:
    """A row for each specification: what one run of each method, and the pool's best policy, come to."""
    methods = [method for method in METHODS if policies.seeds(method)]
    heads = ["specification", *(WORDS[method] for method in methods), "rewards: fixed weights minus declared"]
    rows = [heads, ["---"] * len(heads)]
    for name in specifications():
        chosen = {method: policies.candidates(method, name, 1)[0] for method in methods}
        cells = [f"`{name}`", *(_cell(name, policy) for policy in chosen.values())]
        rows.append([*cells, _apart(name, chosen)])
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    counted = "\n".join(_counted(policies, words, counts) for words, counts in measures(policies).items())
    return f"{text}\n\n{counted}\n{_first_problems(policies)}\n"


def _cell(name: str, policy: Policy) -> str:
    which = f"{policy.run.name}: " if policy.run.method == "pool" else ""
    verdict = "certified" if policy.certified else "**not certified**"
    told = "" if math.isnan(policy.told) else f"told {policy.told:.0%}, "
    return f"{which}{told}{verdict}, {_reward(name, policy.rewards.mean())} ({rates_text(policy.rates.items())})"


def _reward(name: str, value: float) -> str:
    """Brevity in tokens, and a share of right answers."""
    return f"{-value * LONGEST:.2f} tokens" if objective(name).reward == "length" else f"{value:.3f} right"


def _apart(name: str, chosen: dict[str, Policy]) -> str:
    """Fixed weights minus declared, in tokens (fewer are better) or in right answers; only where both are certified."""
    if {"pool", "declared"} - chosen.keys() or not (chosen["pool"].certified and chosen["declared"].certified):
        return "-"
    mean, half = difference(chosen["pool"], chosen["declared"])
    if objective(name).reward == "length":
        return f"{-mean * LONGEST:+.2f} ± {half * LONGEST:.2f} tokens"
    return f"{mean:+.3f} ± {half:.3f} right"


def _counted(policies: Policies, words: str, counts: Counts) -> str:
    """A measure's heading, and a sentence for each line of the figure."""
    count = len(specifications())
    said = [f"Of {count} specifications, {words}:\n"]
    for method, (runs, shares) in lines(policies, counts).items():
        points = list(zip(runs, shares, strict=True))
        if method == "pool":
            points = [point for point in points if point[0] in (1, 2, 4, 8, count, 16, len(points))]
        of = ", ".join(f"{count * share:.{1 if method == 'pool' else 0}f} after {n}" for n, share in points if n)
        means = " (means over the order of the runs)" if method == "pool" else ""
        said.append(f"- {WORDS[method]}: {of} {'run' if runs[-1] == 1 else 'runs'}{means}.")
    return "\n".join(said) + "\n"


def _first_problems(policies: Policies) -> str:
    """How the problems that ``test`` answers by default differ from the others."""
    apart: dict[str, list[float]] = {"tokens": [], "correctness": []}
    for method in METHODS:
        for run in policies.runs(method, policies.seeds(method)):
            answers = policies.answers(run)
            for name, differences in apart.items():
                first, others = answers[name][:TESTED].mean(), answers[name][TESTED:].mean()
                differences.append(float(first - others))
    count = len(apart["tokens"])
    if not count:
        return ""
    tokens, correct = (float(np.mean(differences)) for differences in apart.values())
    return (
        f"The first {TESTED:,} test problems, which `test` answers by default, are a hard draw: answers have "
        f"{tokens:.2f} tokens more\nthan those to the other {SELECTING + LOOKED - TESTED:,}, and {-correct:.3f} fewer "
        f"are right (means of {count} policies)."
    )


def figure(policies: Policies, path: Path) -> None:
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    drawing, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, (words, counts) in zip(panels, measures(policies).items(), strict=True):
        for method, (runs, shares) in lines(policies, counts).items():
            marker = None if method == "pool" else "o"
            axes.plot(runs, shares, color=COLORS[method], marker=marker, lw=1.8, label=WORDS[method], clip_on=False)
        axes.set(title=words, xlabel="training runs, all twelve together", xlim=(0, POOL), ylim=(0, 1))
        axes.title.set_fontsize(10)
    panels[0].set_ylabel("specifications")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{12 * value:.0f}")
    panels[0].set_yticks(np.arange(0, 13, 3) / 12)
    panels[1].legend(frameon=False, loc="upper right", fontsize=9)
    drawing.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(drawing)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.specifications",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--train", nargs="+", choices=TRAINED, default=[], help="methods whose missing runs to train")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/specifications"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="write the tables into the page, and draw the figure")
    options = parser.parse_args()
    answers = options.out / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    for method in options.train:
        for run in runs_of(method, options.seeds):
            file = answers / f"{run}.npz"
            if not file.exists():
                np.savez_compressed(file, **train(run, options.runs.resolve() / str(run)))  # type: ignore[arg-type] # allow_pickle
                print(run, flush=True)
    policies = Policies(answers)
    made = table(policies)
    if not options.write:
        print(made)
        return
    page = options.out / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    page.write_text(f"{before}{MARKS[0]}\n\n{made}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")
    if all(policies.seeds(method) for method in METHODS) and len(policies.runs("pool", 1)) == POOL:
        figure(policies, options.out / "certified.png")


if __name__ == "__main__":
    main()
