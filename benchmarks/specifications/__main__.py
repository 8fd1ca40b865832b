"""Specifications, and how many training runs it takes until each has a certified policy.

    python -m benchmarks.specifications --train declared paper_dual   # three CPU minutes for each missing run
    python -m benchmarks.specifications                               # a minute: the tables of the committed runs
    python -m benchmarks.specifications --write                       # the same into the page, and the figure

    python -m benchmarks.specifications --job support_notes --train pool --overrides=--model.policy.model=FOLDER

Each job's file of specifications was committed before any of its runs.
"""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

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
from benchmarks.specifications.job import Job, Run
from benchmarks.specifications.judged import objective
from benchmarks.specifications.runs import train
from benchmarks.specifications.support_notes import SUPPORT_NOTES
from benchmarks.specifications.word_problems import WORD_PROBLEMS

JOBS = {"word_problems": WORD_PROBLEMS, "support_notes": SUPPORT_NOTES}
MARKS = "<!-- python -m benchmarks.specifications{} --write -->", "<!-- end -->"
COLORS = {"declared": "#1f5fa8", "before": "#8fb3d9", "paper_dual": "#7a4fa3", "gdpo": "#3a8f5c", "pool": "#b5651d"}


def measures(policies: Policies) -> dict[str, Counts]:
    """The counted properties of policies, by their words; rewards are compared when every method has its runs."""
    counted: dict[str, Counts] = {"certified": certified}
    if whole(policies):
        counted["certified, and no method has more reward"] = unsurpassed(policies)
    return counted


def whole(policies: Policies) -> bool:
    """Whether every method has all runs of one seed."""
    job = policies.job
    return all(policies.seeds(method) for method in job.methods) and len(policies.runs("pool", 1)) == job.pool


def lines(policies: Policies, counts: Counts) -> dict[str, tuple[list[int], list[float]]]:
    """Training runs, and the share of the specifications whose chosen policy counts, by method."""
    drawn: dict[str, tuple[list[int], list[float]]] = {}
    for method in policies.job.methods:
        seeds = range(1, policies.seeds(method) + 1)
        if method == "pool" and seeds:
            shares = shares_of_pool(policies, counts)
            drawn[method] = [*range(1, len(shares) + 1)], shares
        elif seeds:
            of_a_seed = sum(1 for _ in policies.job.runs(method, 1))
            shares = [share_of(policies, method, count, counts) for count in seeds]
            drawn[method] = [0, *(of_a_seed * count for count in seeds)], [0.0, *shares]
    return drawn


def table(policies: Policies) -> str:
    """A row for each specification: what one run of each method, and the pool's best policy, come to."""
    job = policies.job
    methods = [job.methods[method] for method in policies.methods]
    heads = ["specification", *methods, "rewards: fixed weights minus declared"]
    rows = [heads, ["---"] * len(heads)]
    for name in job.specifications:
        chosen = policies.chosen(name)
        cells = [_cell(job, name, chosen[method]) if method in chosen else "not run" for method in policies.methods]
        rows.append([f"`{name}`", *cells, _apart(job, name, chosen)])
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    counted = "\n".join(_counted(policies, words, counts) for words, counts in measures(policies).items())
    first = "" if job.tested is None else f"\n{_first_prompts(policies, job.tested)}\n"
    return f"{text}\n\n{counted}{_further_seeds(policies)}{first}"


def _cell(job: Job, name: str, policy: Policy) -> str:
    which = f"{policy.run.name}: " if policy.run.method == "pool" else ""
    verdict = "certified" if policy.certified else "**not certified**"
    told = "" if math.isnan(policy.told) else f"told {policy.told:.0%}, "
    reward = _reward(job, name, policy.rewards.mean())
    return f"{which}{told}{verdict}, {reward} ({rates_text(policy.rates.items())})"


def _reward(job: Job, name: str, value: float) -> str:
    """Brevity in tokens, and a share."""
    if objective(job, name).reward == "length":
        return f"{-value * job.longest:.2f} tokens"
    return f"{value:.3f} {job.reward_words}"


def _apart(job: Job, name: str, chosen: dict[str, Policy]) -> str:
    """Fixed weights minus declared, in tokens (fewer are better) or in a share; only where both are certified."""
    if {"pool", "declared"} - chosen.keys() or not (chosen["pool"].certified and chosen["declared"].certified):
        return "-"
    mean, half = difference(chosen["pool"], chosen["declared"])
    if objective(job, name).reward == "length":
        return f"{-mean * job.longest:+.2f} ± {half * job.longest:.2f} tokens"
    return f"{mean:+.3f} ± {half:.3f} {job.reward_words}"


def _further_seeds(policies: Policies) -> str:
    """A line for each declared run with another seed than the table's."""
    said = []
    for file in sorted(policies.job.answers.glob("declared,*.npz")):
        method, name, seed = file.stem.split(",")
        run = Run(method, name, int(seed.removeprefix("seed=")))
        if run.seed:
            said.append(f"- `{name}`, seed {run.seed}: {_cell(policies.job, name, policies.of(run, name))}.")
    return "\nDeclared with other seeds:\n\n" + "\n".join(said) + "\n" if said else ""


def _counted(policies: Policies, words: str, counts: Counts) -> str:
    """A measure's heading, and a sentence for each line of the figure."""
    count = len(policies.job.specifications)
    said = [f"Of {count} specifications, {words}:\n"]
    for method, (runs, shares) in lines(policies, counts).items():
        points = list(zip(runs, shares, strict=True))
        if method == "pool":
            points = [point for point in points if point[0] in (1, 2, 4, 8, count, 16, len(points))]
        of = ", ".join(f"{count * share:.{1 if method == 'pool' else 0}f} after {n}" for n, share in points if n)
        means = " (means over the order of the runs)" if method == "pool" else ""
        said.append(f"- {policies.job.methods[method]}: {of} {'run' if runs[-1] == 1 else 'runs'}{means}.")
    return "\n".join(said) + "\n"


def _first_prompts(policies: Policies, tested: int) -> str:
    """How the prompts that ``test`` answers by default differ from the others."""
    job = policies.job
    apart: dict[str, list[float]] = {"tokens": [], "correctness": []}
    for method in job.methods:
        for run in policies.runs(method, policies.seeds(method)):
            answers = policies.answers(run)
            for name, differences in apart.items():
                first, others = answers[name][:tested].mean(), answers[name][tested:].mean()
                differences.append(float(first - others))
    count = len(apart["tokens"])
    if not count:
        return ""
    tokens, correct = (float(np.mean(differences)) for differences in apart.values())
    return (
        f"The first {tested:,} test problems, which `test` answers by default, are a hard draw: answers have "
        f"{tokens:.2f} tokens more\nthan those to the other {job.selecting + job.looked - tested:,}, and "
        f"{-correct:.3f} fewer are right (means of {count} policies)."
    )


def figure(policies: Policies, path: Path) -> None:
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    words_of, count = policies.job.methods, len(policies.job.specifications)
    drawing, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, (words, counts) in zip(panels, measures(policies).items(), strict=True):
        for method, (runs, shares) in lines(policies, counts).items():
            marker = None if method == "pool" else "o"
            axes.plot(runs, shares, color=COLORS[method], marker=marker, lw=1.8, label=words_of[method], clip_on=False)
        axes.set(title=words, xlabel=f"training runs, all {count} specifications together", ylim=(0, 1))
        axes.set_xlim(left=0)
        axes.title.set_fontsize(10)
    panels[0].set_ylabel("specifications")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{count * value:.0f}")
    panels[0].set_yticks(np.linspace(0, 1, 5 if count % 4 == 0 else count + 1))
    panels[1].legend(frameon=False, loc="upper right", fontsize=9)
    drawing.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(drawing)


def main() -> None:
    trained = sorted({method for job in JOBS.values() for method in job.methods if method not in job.retired})
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.specifications",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", choices=JOBS, default="word_problems")
    parser.add_argument("--train", nargs="+", choices=trained, default=[], help="methods whose missing runs to train")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="train runs whose name contains this")
    parser.add_argument("--overrides", default="", help="further arguments of fit, in quotes")
    parser.add_argument("--runs", type=Path, help="folder of the runs (default: runs/JOB)")
    parser.add_argument("--write", action="store_true", help="write the tables into the page, and draw the figure")
    options = parser.parse_args()
    job = JOBS[options.job]
    folder = (options.runs or Path("runs") / job.name).resolve()
    job.answers.mkdir(parents=True, exist_ok=True)
    for method in options.train:
        for run in job.runs(method, options.seeds):
            file = job.answers / f"{run}.npz"
            if options.only in str(run) and not file.exists():
                answers = train(job, run, folder / str(run), shlex.split(options.overrides))
                np.savez_compressed(file, **answers)  # type: ignore[arg-type] # allow_pickle
                print(run, flush=True)
    policies = Policies(job)
    made = table(policies)
    if not options.write:
        print(made)
        return
    page = job.results / "README.md"
    begin, end = MARKS[0].format("" if job is WORD_PROBLEMS else f" --job {options.job}"), MARKS[1]
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n\n{made}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
    if whole(policies):
        figure(policies, job.results / "certified.png")


if __name__ == "__main__":
    main()
