"""How much longer the fullest process computes than the mean, with groups where they were sampled, and exchanged.

    python -m benchmarks.balance     # a minute; writes benchmarks/results/balance.json

An optimizer step ends when the process with the most tokens has computed them, so an update takes the sum over its
steps of the largest share. The table has this time relative to equal shares, on average over updates: 1 is perfect.
Lengths are simulated: the mean of a group is lognormal over prompts, an answer's length lognormal around the mean of
its group, and cut at the longest answer. A prompt is computed once for its group.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from lightning_cgrpo.grpo.exchange import assign, steps_of
from lightning_cgrpo.grpo.minibatches import Share, partition

RESULTS = Path(__file__).parent / "results" / "balance.json"
UPDATES, PROMPT = 200, 150
LENGTHS = {
    "word problems": (150, 0.35, 0.35, 512),
    "reasoning": (1500, 0.7, 0.5, 8192),
}
"""Median of the answers' tokens, spread of the logarithm over prompts and within a group, longest answer."""
SETTINGS = [  # processes, prompts, answers to each, optimizer steps of an update
    (2, 32, 16, 1),
    (8, 32, 16, 1),
    (8, 128, 8, 1),
    (8, 128, 8, 4),
    (8, 64, 16, 16),
    (64, 512, 16, 1),
    (64, 512, 16, 4),
]


def group_tokens(draw: np.random.Generator, kind: str, prompts: int, group_size: int) -> np.ndarray:
    median, over_prompts, within, longest = LENGTHS[kind]
    logs = over_prompts * draw.standard_normal((prompts, 1)) + within * draw.standard_normal((prompts, group_size))
    return PROMPT + (median * np.exp(logs)).clip(1, longest).astype(int).sum(1)


def excess(tokens: np.ndarray, steps: np.ndarray, owners: np.ndarray, processes: int) -> float:
    """Time of an update relative to equal shares."""
    loads = np.zeros((steps.max() + 1, processes))
    np.add.at(loads, (steps, owners), tokens)
    return float(loads.max(1).sum() / loads.mean(1).sum())


def simulated(kind: str, processes: int, prompts: int, group_size: int, steps: int) -> tuple[float, float]:
    """Mean excess over updates: of groups where they were sampled, and exchanged."""
    draw = np.random.default_rng(0)
    found = []
    for update in range(UPDATES):
        tokens = group_tokens(draw, kind, prompts, group_size)
        share = Share(torch.arange(0), prompts * group_size, group_size)
        number = steps_of([partition(share, prompts * group_size // steps, 0, update, 0)], share)
        home = np.repeat(np.arange(processes), prompts // processes)
        moved = np.array(assign(tokens.tolist(), number, processes))
        found.append([excess(tokens, np.array(number[0]), owners, processes) for owners in (home, moved)])
    before, after = np.mean(found, 0)
    return float(before), float(after)


def main() -> None:
    table = Table("lengths", "processes", "prompts x answers", "steps", "as sampled", "exchanged")
    results = []
    for kind in LENGTHS:
        for processes, prompts, group_size, steps in SETTINGS:
            before, after = simulated(kind, processes, prompts, group_size, steps)
            row = {"lengths": kind, "processes": processes, "prompts": prompts, "answers": group_size, "steps": steps}
            results.append({**row, "as_sampled": round(before, 3), "exchanged": round(after, 3)})
            size = f"{prompts} x {group_size}"
            table.add_row(kind, str(processes), size, str(steps), f"{before:.2f}", f"{after:.2f}")
    Console().print(table)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
