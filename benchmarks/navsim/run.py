"""The driving comparison, on the generated scenes of configs/navsim.yaml.

python -m benchmarks.navsim.run           # goes on where it was stopped
python -m benchmarks.navsim.run --list    # what is finished

Every core trains one run at a time. scores.md in the results is the table of the paper's columns; its rows without a
run (the model that all start from, PDM-Closed, constant velocity, the human) come from start.json, which

python -m lightning_cgrpo test -c configs/navsim.yaml --callbacks.scores.path=docs/results/navsim/start.json

writes.
"""

from __future__ import annotations

import json
import sys

from benchmarks.navsim.experiments import SETS
from benchmarks.navsim.scores import collect, table
from benchmarks.runner.experiment import Experiment
from benchmarks.runner.ledger import Ledger
from benchmarks.runner.run import main

NAVSIM = Experiment(name="navsim", help=__doc__, sets=SETS, standard=("paper",))
START = {"policy": "after SFT"}


def write_scores() -> None:
    """scores.json and scores.md of the standard set, beside its report."""
    ledger = Ledger(NAVSIM.logs, NAVSIM.results)
    for name in NAVSIM.standard:
        folder = NAVSIM.results / name
        finished = [run.name for run in SETS[name]() if ledger.finished(run)]
        scores = collect(NAVSIM.logs, folder / "scores.json", finished)
        start = NAVSIM.results / "start.json"
        others = json.loads(start.read_text())["drivers"] if start.exists() else {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scores.md").write_text(table(scores, {START.get(key, key): one for key, one in others.items()}))


if __name__ == "__main__":
    try:
        main(NAVSIM)
    finally:
        if not any(option.startswith(("--li", "--h", "-h", "--lo", "--res")) for option in sys.argv[1:]):
            write_scores()
