"""Draws docs/picture.png: a rate that reaches its threshold while the reward rises, beside fixed weights.

    python docs/picture.py

From the committed runs of docs/results/gsm8k, three seeds each; the study of that page trains them again.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parent
RUNS = DOCS / "results" / "gsm8k" / "paper" / "runs"
METHODS = {"fixed_weights": ("fixed weights", "#b5651d"), "scalarized_advantages": ("threshold declared", "#1f5fa8")}
PANELS = {"reward/mean": "reward: brevity of the answers", "rate/correctness": "rate of correct answers"}
THRESHOLD = 0.85
SMOOTHED = 3
"""Bins of five updates in a running mean."""


def curve(name: str, seed: int, tag: str) -> tuple[list[float], np.ndarray]:
    """Updates, and a running mean of the tag."""
    run = json.loads((RUNS / f"{name}_seed{seed}.json").read_text(encoding="utf-8"))
    values = np.convolve(run["series"][tag], np.ones(SMOOTHED) / SMOOTHED, mode="valid")
    half = SMOOTHED // 2
    return run["steps"][half:-half], values


def main() -> None:
    """Write the picture."""
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.7), layout="constrained")
    for axes, (tag, title) in zip(panels, PANELS.items(), strict=True):
        for name, (label, color) in METHODS.items():
            for seed in range(3):
                steps, values = curve(name, seed, tag)
                axes.plot(steps, values, color=color, lw=1.4, label=label if seed == 0 else None)
        axes.set(title=title, xlabel="update", xlim=(0, 300))
    panels[0].legend(frameon=False, loc="lower right")
    panels[1].axhline(THRESHOLD, color="black", lw=1, ls="--")
    panels[1].text(298, THRESHOLD - 0.035, "threshold 0.85", ha="right", fontsize=9)
    figure.savefig(DOCS / "picture.png", dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
