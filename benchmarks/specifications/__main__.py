"""Twelve specifications, and how many training runs it takes until each has a certified policy.

    python -m benchmarks.specifications --train declared paper_dual   # three CPU minutes for each missing run
    python -m benchmarks.specifications                               # the tables and the figure of the committed runs

`specifications.yaml` was committed before any run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.specifications.runs import METHODS, ROOT, runs_of, train

RESULTS = ROOT / "docs/results/specifications"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--train", nargs="+", choices=METHODS, default=[], help="methods whose missing runs are trained"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/specifications"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    answers = options.out / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    for method in options.train:
        for run in runs_of(method, options.seeds):
            file = answers / f"{run}.npz"
            if not file.exists():
                np.savez_compressed(file, **train(run, options.runs.resolve() / str(run)))
                print(run, flush=True)


if __name__ == "__main__":
    main()
