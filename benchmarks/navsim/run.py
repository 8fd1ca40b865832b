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
from pathlib import Path

from benchmarks.navsim.experiments import SETS
from benchmarks.navsim.scores import collect, table
from benchmarks.runner.experiment import Experiment
from benchmarks.runner.run import main

START = {"policy": "after SFT"}


def write_scores(logs: Path, folder: Path, runs: list[str]) -> None:
    """scores.json and scores.md, beside a report; see `Experiment.extra`."""
    scores = collect(logs, folder / "scores.json", runs)
    start = folder.parent / "start.json"
    others = json.loads(start.read_text())["drivers"] if start.exists() else {}
    (folder / "scores.md").write_text(table(scores, {START.get(key, key): one for key, one in others.items()}))


NAVSIM = Experiment(name="navsim", help=__doc__, sets=SETS, standard=("paper",), extra=write_scores)

if __name__ == "__main__":
    main(NAVSIM)
